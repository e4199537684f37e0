import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Many Java consumers and producers in one JVM, told what to do by lines of JSON; what comes to pass is told
 * by lines of JSON.
 *
 * <p>A consumer runs in a thread of its own: it polls, tells each record, then commits. Its events are
 * "assigned" with all it holds when that changed, "given", "revoked" and "lost" as its listener is called,
 * "record", "closed" with an error if one ended it. A producer does as it is told,
 * one thing after the other, and each is answered by "done" or by "failed" with the exception's name.
 */
public final class Clients {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration POLL = Duration.ofMillis(100);
    private static final Duration CLOSE = Duration.ofSeconds(20);
    private static PrintStream told;

    private static synchronized void tell(ObjectNode event) {
        told.println(event);
    }

    private static ObjectNode event(String kind, String name) {
        return JSON.createObjectNode().put("event", kind).put("name", name);
    }

    private static Properties properties(JsonNode config) {
        Properties found = new Properties();
        config.fields().forEachRemaining(entry -> found.put(entry.getKey(), entry.getValue().asText()));
        return found;
    }

    private static final class Member implements Runnable, ConsumerRebalanceListener {
        private final String name;
        private final KafkaConsumer<String, String> consumer;
        private final JsonNode asked;
        private Set<TopicPartition> held = Set.of();
        private volatile boolean closing;
        private volatile boolean remains;

        Member(String name, JsonNode asked) {
            this.name = name;
            this.asked = asked;
            this.consumer = new KafkaConsumer<>(
                properties(asked.get("config")), new StringDeserializer(), new StringDeserializer());
        }

        private void subscribe() {
            if (asked.has("re2")) {
                consumer.subscribe(new SubscriptionPattern(asked.get("re2").asText()), this);
            } else if (asked.has("pattern")) {
                consumer.subscribe(Pattern.compile(asked.get("pattern").asText()), this);
            } else {
                List<String> topics = new ArrayList<>();
                asked.get("topics").forEach(topic -> topics.add(topic.asText()));
                consumer.subscribe(topics, this);
            }
        }

        @Override
        public void run() {
            String error = null;
            try {
                subscribe();
                while (!closing) {
                    ConsumerRecords<String, String> records = consumer.poll(POLL);
                    tellAssigned();
                    for (ConsumerRecord<String, String> record : records) {
                        tell(event("record", name).put("topic", record.topic())
                            .put("partition", record.partition()).put("offset", record.offset())
                            .put("key", record.key()).put("value", record.value()));
                    }
                    if (!records.isEmpty()) {
                        consumer.commitSync();
                    }
                }
            } catch (WakeupException woken) {
                error = closing ? null : woken.toString();
            } catch (RuntimeException thrown) {
                error = thrown.getClass().getSimpleName();
            }
            try {
                consumer.close(CloseOptions.timeout(CLOSE).withGroupMembershipOperation(
                    remains ? CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP
                        : CloseOptions.GroupMembershipOperation.DEFAULT));
            } catch (RuntimeException thrown) {
                error = error == null ? thrown.getClass().getSimpleName() : error;
            }
            tell(event("closed", name).put("error", error));
        }

        private void tellAssigned() {
            Set<TopicPartition> now = consumer.assignment();
            if (now.equals(held)) {
                return;
            }
            held = Set.copyOf(now);
            ObjectNode assigned = event("assigned", name);
            held.stream().map(TopicPartition::toString).sorted()
                .forEach(assigned.withArray("partitions")::add);
            tell(assigned);
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> added) {
            tell(event("given", name).put("count", added.size()));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> taken) {
            tell(event("revoked", name).put("count", taken.size()));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> lost) {
            tell(event("lost", name).put("count", lost.size()));
        }
    }

    private static ObjectNode produce(KafkaProducer<String, String> producer, JsonNode asked) throws Exception {
        String name = asked.get("name").asText();
        ObjectNode done = event("done", name);
        switch (asked.get("do").asText()) {
            case "init" -> producer.initTransactions();
            case "begin" -> producer.beginTransaction();
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "close" -> producer.close(CLOSE);
            case "offsets" -> {
                TopicPartition partition =
                    new TopicPartition(asked.get("topic").asText(), asked.get("partition").asInt());
                KafkaConsumer<String, String> reader = new KafkaConsumer<>(
                    properties(asked.get("config")), new StringDeserializer(), new StringDeserializer());
                try (reader) {
                    producer.sendOffsetsToTransaction(
                        Map.of(partition, new OffsetAndMetadata(asked.get("offset").asLong(), "noted")),
                        reader.groupMetadata());
                }
            }
            case "send" -> {
                Integer partition = asked.has("partition") ? asked.get("partition").asInt() : null;
                RecordMetadata written = producer.send(new ProducerRecord<>(
                    asked.get("topic").asText(), partition, asked.path("key").textValue(),
                    asked.get("value").asText())).get();
                done.put("partition", written.partition()).put("offset", written.offset());
            }
            default -> throw new IllegalArgumentException(asked.toString());
        }
        return done;
    }

    public static void main(String[] args) throws Exception {
        told = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        Map<String, Member> members = new HashMap<>();
        Map<String, KafkaProducer<String, String>> producers = new HashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode asked = JSON.readTree(line);
            String name = asked.get("name").asText();
            switch (asked.get("do").asText()) {
                case "consume" -> {
                    Member member = new Member(name, asked);
                    members.put(name, member);
                    Thread thread = new Thread(member, name);
                    thread.setDaemon(true);
                    thread.start();
                }
                case "leave" -> {
                    Member member = members.remove(name);
                    member.remains = asked.path("remains").asBoolean();
                    member.closing = true;
                    member.consumer.wakeup();
                }
                case "producer" -> {
                    producers.put(name, new KafkaProducer<>(
                        properties(asked.get("config")), new StringSerializer(), new StringSerializer()));
                    tell(event("done", name));
                }
                default -> {
                    try {
                        tell(produce(producers.get(name), asked));
                    } catch (Exception thrown) {
                        Throwable cause = thrown instanceof java.util.concurrent.ExecutionException
                            ? thrown.getCause() : thrown;
                        tell(event("failed", name).put("error", cause.getClass().getSimpleName())
                            .put("message", cause.getMessage()));
                    }
                }
            }
        }
        System.exit(0);
    }
}

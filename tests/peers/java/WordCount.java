import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Counts words with exactly_once_v2: WordCount BOOTSTRAP APPLICATION STATE_FOLDER INPUT OUTPUT [NAME=VALUE…].
 *
 * <p>No cache, so each word of the input becomes one record of the output with the count so far: the output
 * itself shows what was counted twice or left out. Its state goes to stdout, a line for each change. A thread
 * that an error of the broker ends is replaced, as an application would that must run on.
 */
public final class WordCount {
    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        config.put(StreamsConfig.STATE_DIR_CONFIG, args[2]);
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        config.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        config.put("auto.offset.reset", "earliest");
        for (String given : Arrays.asList(args).subList(5, args.length)) {
            config.put(given.substring(0, given.indexOf('=')), given.substring(given.indexOf('=') + 1));
        }
        StreamsBuilder builder = new StreamsBuilder();
        KStream<byte[], byte[]> lines = builder.stream(
            args[3], Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()));
        lines.flatMapValues(line -> Arrays.asList(new String(line, StandardCharsets.UTF_8).split(" ")))
            .groupBy(
                (key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.with(Serdes.String(), Serdes.Long()))
            .toStream()
            .mapValues(count -> count.toString())
            .to(args[4], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), config);
        streams.setStateListener((now, before) -> System.out.println(now));
        streams.setUncaughtExceptionHandler(thrown -> {
            System.out.println("REPLACED " + thrown);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.start();
        while (System.in.read() >= 0) {
            continue;
        }
        streams.close(Duration.ofSeconds(30));
    }
}

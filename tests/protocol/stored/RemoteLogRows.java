import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;

/** Reads records in hex, a line each; writes what Kafka's serializer makes of them, a tab, and what they say. */
public class RemoteLogRows {
    public static void main(String[] args) throws Exception {
        RemoteLogMetadataSerde serde = new RemoteLogMetadataSerde();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            var record = serde.deserialize(HexFormat.of().parseHex(line));
            System.out.println(HexFormat.of().formatHex(serde.serialize(record)) + "\t" + record);
        }
    }
}

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's command line tools one after the other in one JVM, which starts once for all of them.
 *
 * <p>Reads one JSON object a line, {"main": class, "args": [...]}, and answers each with one line,
 * {"code": exit code, "out": text, "err": text}. What a tool prints goes through streams that are there
 * before the first tool is loaded, as Scala's keep the ones they found.
 */
public final class Tools {
    private static final ObjectMapper JSON = new ObjectMapper();

    private static final class Ended extends RuntimeException {
        private final int code;

        Ended(int code) {
            super("exit " + code, null, false, false);
            this.code = code;
        }
    }

    /** Writes to what is `target` at the time. */
    private static final class Switched extends OutputStream {
        private volatile OutputStream target = OutputStream.nullOutputStream();

        @Override
        public void write(int one) throws IOException {
            target.write(one);
        }

        @Override
        public void write(byte[] bytes, int at, int count) throws IOException {
            target.write(bytes, at, count);
        }
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        Switched out = new Switched();
        Switched err = new Switched();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> { throw new Ended(code); });
        Exit.setHaltProcedure((code, message) -> { throw new Ended(code); });
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = asked.readLine(); line != null; line = asked.readLine()) {
            JsonNode request = JSON.readTree(line);
            String[] given = JSON.convertValue(request.get("args"), String[].class);
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            ByteArrayOutputStream complained = new ByteArrayOutputStream();
            out.target = said;
            err.target = complained;
            int code = run(request.get("main").asText(), given);
            out.target = OutputStream.nullOutputStream();
            err.target = OutputStream.nullOutputStream();
            ObjectNode answer = JSON.createObjectNode();
            answer.put("code", code);
            answer.put("out", said.toString(StandardCharsets.UTF_8));
            answer.put("err", complained.toString(StandardCharsets.UTF_8));
            answers.println(JSON.writeValueAsString(answer));
        }
    }

    private static int run(String name, String[] args) {
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) args);
            return 0;
        } catch (InvocationTargetException thrown) {
            if (thrown.getCause() instanceof Ended) {
                return ((Ended) thrown.getCause()).code;
            }
            thrown.getCause().printStackTrace();
            return 1;
        } catch (ReflectiveOperationException thrown) {
            thrown.printStackTrace();
            return 1;
        }
    }
}

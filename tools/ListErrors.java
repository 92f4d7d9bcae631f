import org.apache.kafka.common.errors.InvalidMetadataException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.Errors;

/** Prints Kafka's error codes: java -cp 'FOLDER/*' tools/ListErrors.java, with kafka-clients and slf4j in the folder. */
public class ListErrors {
    public static void main(String[] arguments) {
        for (Errors error : Errors.values()) {
            Exception exception = error.exception();
            String flag = exception instanceof InvalidMetadataException ? "M"
                : exception instanceof RetriableException ? "R" : "-";
            System.out.printf("%d %s %s: %s%n", error.code(), flag, error.name(), error.message());
        }
    }
}

import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.message.*;

/** A load by RocketMQ's classic client: NAMESERVER KIND THREADS SIZE SECONDS; prints messages per second as JSON. */
public class RocketLoad {
    static final String TOPIC = "bench";
    static final int QUEUES = 8;
    static final long WAIT_NS = 120_000_000_000L;

    interface Send {
        void one(Message message) throws Exception;
    }

    public static void main(String[] words) throws Exception {
        boolean inTransactions = words[1].equals("transactions");
        int threads = Integer.parseInt(words[2]);
        byte[] body = new byte[Integer.parseInt(words[3])];
        double seconds = Double.parseDouble(words[4]);
        TransactionMQProducer producer = new TransactionMQProducer("bench");
        producer.setNamesrvAddr(words[0]);
        producer.setDefaultTopicQueueNums(QUEUES);
        producer.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        Send plain = message -> {
            if (producer.send(message).getSendStatus() != SendStatus.SEND_OK) throw new IllegalStateException("not stored");
        };
        Send committed = message -> {
            if (producer.sendMessageInTransaction(message, null).getSendStatus() != SendStatus.SEND_OK)
                throw new IllegalStateException("not stored");
        };
        awaitBroker(plain, body);
        Send send = inTransactions ? committed : plain;
        rate(send, threads, body, seconds); // warms up
        System.out.println("{\"rate\": " + rate(send, threads, body, seconds) + "}");
        System.exit(0);
    }

    /** The broker registers itself with the nameserver a while after its port has opened. */
    static void awaitBroker(Send send, byte[] body) throws Exception {
        long endsAt = System.nanoTime() + WAIT_NS;
        while (true) {
            try {
                send.one(new Message(TOPIC, body));
                return;
            } catch (Exception refused) {
                if (System.nanoTime() > endsAt) throw refused;
                Thread.sleep(200);
            }
        }
    }

    static double rate(Send send, int count, byte[] body, double seconds) throws Exception {
        AtomicLong sent = new AtomicLong(), failed = new AtomicLong();
        long began = System.nanoTime();
        Thread[] threads = new Thread[count];
        for (int each = 0; each < count; each++) {
            threads[each] = new Thread(() -> {
                try {
                    while (System.nanoTime() - began < seconds * 1e9) {
                        send.one(new Message(TOPIC, body));
                        sent.incrementAndGet();
                    }
                } catch (Exception error) {
                    error.printStackTrace();
                    failed.incrementAndGet();
                }
            });
            threads[each].start();
        }
        for (Thread each : threads) each.join();
        if (failed.get() > 0) System.exit(1);
        return sent.get() / ((System.nanoTime() - began) / 1e9);
    }
}

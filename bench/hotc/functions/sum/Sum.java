import java.io.BufferedInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;

/**
 * The program of HotC's Fig. 4b: sums 0 to 10 million. A client of the Lambda Runtime API if the environment names one, otherwise
 * a program that gets its event on standard input. It needs only java.base, so that it runs on a small image.
 */
public final class Sum {
    private static final String INVOCATION = "/2018-06-01/runtime/invocation/";

    public static void main(String[] arguments) throws IOException {
        String api = System.getenv("AWS_LAMBDA_RUNTIME_API");
        if (api == null) {
            System.out.println(sum(System.in.readAllBytes()));
            return;
        }
        int colon = api.lastIndexOf(':');
        try (Socket socket = new Socket(api.substring(0, colon), Integer.parseInt(api.substring(colon + 1)))) {
            socket.setTcpNoDelay(true);
            InputStream input = new BufferedInputStream(socket.getInputStream());
            while (true) {
                send(socket, "GET " + INVOCATION + "next HTTP/1.1\r\nhost: " + api + "\r\n\r\n");
                Message event = Message.read(input);
                String answer = Long.toString(sum(event.body));
                send(socket, "POST " + INVOCATION + event.requestId + "/response HTTP/1.1\r\nhost: " + api
                        + "\r\ncontent-length: " + answer.length() + "\r\n\r\n" + answer);
                Message.read(input);
            }
        }
    }

    private static long sum(byte[] event) {
        long to = Long.parseLong(new String(event, StandardCharsets.UTF_8).replaceAll("[^0-9]", ""));
        long total = 0;
        for (long number = 0; number <= to; number++) {
            total += number;
        }
        return total;
    }

    private static void send(Socket socket, String text) throws IOException {
        socket.getOutputStream().write(text.getBytes(StandardCharsets.UTF_8));
    }

    /** The needed part of a Runtime API answer. */
    private static final class Message {
        String requestId = "";
        byte[] body = {};

        static Message read(InputStream input) throws IOException {
            Message message = new Message();
            int length = 0;
            for (String line = line(input); !line.isEmpty(); line = line(input)) {
                int colon = line.indexOf(':');
                String name = colon < 0 ? "" : line.substring(0, colon).toLowerCase();
                if (name.equals("content-length")) {
                    length = Integer.parseInt(line.substring(colon + 1).trim());
                } else if (name.equals("lambda-runtime-aws-request-id")) {
                    message.requestId = line.substring(colon + 1).trim();
                }
            }
            message.body = input.readNBytes(length);
            return message;
        }

        private static String line(InputStream input) throws IOException {
            StringBuilder line = new StringBuilder();
            for (int letter = input.read(); letter != '\n'; letter = input.read()) {
                if (letter < 0) {
                    System.exit(0);
                }
                if (letter != '\r') {
                    line.append((char) letter);
                }
            }
            return line.toString();
        }
    }
}

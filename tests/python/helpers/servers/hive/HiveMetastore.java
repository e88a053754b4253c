import java.io.PrintStream;
import java.net.InetSocketAddress;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy;
import org.apache.hadoop.hive.metastore.HiveMetaStore.HMSHandler;
import org.apache.hadoop.hive.metastore.IHMSHandler;
import org.apache.hadoop.hive.metastore.PartitionExpressionProxy;
import org.apache.hadoop.hive.metastore.RetryingHMSHandler;
import org.apache.hadoop.hive.metastore.TSetIpAddressProcessor;
import org.apache.hadoop.hive.metastore.conf.MetastoreConf;
import org.apache.hadoop.hive.metastore.conf.MetastoreConf.ConfVars;
import org.apache.hadoop.hive.metastore.events.EventCleanerTask;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.thrift.server.TServer;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;

/**
 * A Hive metastore over a Derby database in memory, on 127.0.0.1 only.
 *
 * <p>The metastore's main class listens on every interface, which a test must not; its handler is used as it
 * is. The argument is the folder of its warehouse. Prints the port; ends when its standard input does, so that
 * it does not outlive the tests however they end.
 */
public class HiveMetastore {
  public static void main(String[] arguments) throws Exception {
    // What the metastore itself prints is log.
    PrintStream answer = System.out;
    System.setOut(System.err);
    Configuration settings = MetastoreConf.newMetastoreConf();
    MetastoreConf.setVar(settings, ConfVars.WAREHOUSE, arguments[0]);
    MetastoreConf.setVar(settings, ConfVars.CONNECT_URL_KEY, "jdbc:derby:memory:metastore;create=true");
    // The defaults of these two are in the jars of Hive itself.
    MetastoreConf.setClass(
        settings,
        ConfVars.EXPRESSION_PROXY_CLASS,
        DefaultPartitionExpressionProxy.class,
        PartitionExpressionProxy.class);
    MetastoreConf.setVar(settings, ConfVars.TASK_THREADS_ALWAYS, EventCleanerTask.class.getName());
    MetastoreConf.setBoolVar(settings, ConfVars.AUTO_CREATE_ALL, true);
    MetastoreConf.setBoolVar(settings, ConfVars.SCHEMA_VERIFICATION, false);
    IHMSHandler handler =
        RetryingHMSHandler.getProxy(settings, new HMSHandler("tests", settings, false), false);
    // The tables of locks, which a commit to an Iceberg table takes.
    TxnDbUtil.prepDb(settings);
    TServerSocket socket = new TServerSocket(new InetSocketAddress("127.0.0.1", 0));
    TServer server =
        new TThreadPoolServer(
            new TThreadPoolServer.Args(socket).processor(new TSetIpAddressProcessor<>(handler)));
    Thread watch = new Thread(() -> {
      try {
        while (System.in.read() >= 0) {}
      } catch (java.io.IOException gone) {
        // The tests are gone as well.
      }
      Runtime.getRuntime().halt(0);
    });
    watch.setDaemon(true);
    watch.start();
    // The socket accepts connections from here on.
    answer.println(socket.getServerSocket().getLocalPort());
    server.serve();
  }
}

import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.Map;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/**
 * Iceberg's own REST test fixture on 127.0.0.1 only.
 *
 * <p>The fixture's main class listens on every interface, which a test must not; its servlet and adapter are
 * used as they are. Arguments are properties of the catalog, "name=value". Prints the port; ends when its
 * standard input does, so that it does not outlive the tests however they end.
 */
public class RestCatalog {
  public static void main(String[] arguments) throws Exception {
    Map<String, String> properties = new HashMap<>();
    for (String argument : arguments) {
      String[] parts = argument.split("=", 2);
      properties.put(parts[0], parts[1]);
    }
    Catalog catalog = CatalogUtil.buildIcebergCatalog("tests", properties, null);
    RESTCatalogServlet servlet = new RESTCatalogServlet(new RESTCatalogAdapter(catalog));
    ServletContextHandler handler = new ServletContextHandler();
    handler.addServlet(new ServletHolder(servlet), "/*");
    Server server = new Server(new InetSocketAddress("127.0.0.1", 0));
    server.setHandler(handler);
    server.start();
    System.out.println(((ServerConnector) server.getConnectors()[0]).getLocalPort());
    while (System.in.read() >= 0) {}
    server.stop();
  }
}

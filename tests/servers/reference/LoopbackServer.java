package org.apache.iceberg.rest;

import java.net.InetSocketAddress;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.rest.RESTCatalogServer.CatalogContext;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.NetworkConnector;
import org.eclipse.jetty.server.Server;

/**
 * Iceberg's reference REST catalog on the loopback address only; its own main class listens on every interface.
 *
 * <p>Arguments: a port (0 for any free one), then the catalog's properties as key=value. Prints one line, "listening on URI",
 * when it is ready, and ends when its standard input does, so that it never outlives the test that started it.
 */
public final class LoopbackServer {
  private static final String LOOPBACK = "127.0.0.1";

  private LoopbackServer() {}

  public static void main(String[] arguments) throws Exception {
    Map<String, String> properties = new LinkedHashMap<>();
    for (int i = 1; i < arguments.length; i++) {
      String[] pair = arguments[i].split("=", 2);
      properties.put(pair[0], pair[1]);
    }
    Catalog catalog = CatalogUtil.buildIcebergCatalog("reference", properties, new Configuration());
    CatalogContext context = new CatalogContext(catalog, properties);
    RESTCatalogServlet servlet = new RESTCatalogServlet(new RESTServerCatalogAdapter(context));

    ServletContextHandler handler = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    handler.addServlet(new ServletHolder(servlet), "/*");
    Server server = new Server(new InetSocketAddress(LOOPBACK, Integer.parseInt(arguments[0])));
    server.setHandler(handler);
    server.start();
    int port = ((NetworkConnector) server.getConnectors()[0]).getLocalPort();
    System.out.println("listening on http://" + LOOPBACK + ":" + port);

    while (System.in.read() != -1) {}
    System.exit(0);
  }
}

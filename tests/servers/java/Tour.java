import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.List;
import org.lance.namespace.client.apache.ApiClient;
import org.lance.namespace.client.apache.ApiException;
import org.lance.namespace.client.apache.api.NamespaceApi;
import org.lance.namespace.client.apache.api.TableApi;
import org.lance.namespace.model.CountTableRowsRequest;
import org.lance.namespace.model.CreateNamespaceRequest;
import org.lance.namespace.model.DescribeTableRequest;
import org.lance.namespace.model.TableExistsRequest;

/** What the Java client of the Lance REST Namespace does with tables behind a gateway: address, namespace, rows. */
public class Tour {
  public static void main(String[] words) throws Exception {
    ApiClient client = new ApiClient();
    client.setBasePath(words[0]);
    NamespaceApi namespaces = new NamespaceApi(client);
    TableApi tables = new TableApi(client);
    String home = words[1];
    String table = home + "$my table";
    List<String> id = List.of(table.split("\\$"));
    byte[] rows = Files.readAllBytes(Path.of(words[2]));

    CreateNamespaceRequest create = new CreateNamespaceRequest();
    create.setProperties(Collections.singletonMap("colour", "red"));
    try {
      namespaces.createNamespace(home, create, "$"); // with an empty id in its body, since none was set
    } catch (ApiException refused) {
      say("without", refused.getCode());
    }
    create.setId(id.subList(0, id.size() - 1));
    say("properties", namespaces.createNamespace(home, create, "$").getProperties().get("colour"));
    tables.createTable(table, rows, "$", "create");
    tables.insertIntoTable(table, rows, "$", "append");
    say("count", tables.countTableRows(table, new CountTableRowsRequest().id(id), "$"));
    say("tables", namespaces.listTables(home, "$", null, null).getTables());
    say("versions", tables.listTableVersions(table, "$", null, null, null).getVersions().size());
    tables.tableExists(table, new TableExistsRequest().id(id), "$");
    say("location", tables.describeTable(table, new DescribeTableRequest().id(id), "$", null, null).getLocation());
    tables.dropTable(table, "$");
    try {
      tables.tableExists(table, new TableExistsRequest().id(id), "$");
    } catch (ApiException refused) {
      say("missing", refused.getCode());
    }
  }

  private static void say(String what, Object value) {
    System.out.println(what + "=" + value);
  }
}

// What LanceDB's npm package does with tables behind a gateway; prints what it found as one line of JSON.

const lancedb = require("@lancedb/lancedb");

async function refused(work) {
  try {
    await work();
    return null;
  } catch (error) {
    return String(error.message);
  }
}

function rows(from, to) {
  return Array.from({ length: to - from }, (_, at) => ({ id: from + at, word: `w${from + at}`, vector: [from + at, 1] }));
}

async function tour({ uri, headers, home }) {
  const found = {};
  const db = await lancedb.connectNamespace("rest", { uri, headers });
  await db.createNamespace(home, { properties: { colour: "red" } });
  found.properties = (await db.describeNamespace(home)).properties.colour;
  found.namespaces = (await db.listNamespaces(home.slice(0, -1))).namespaces.includes(home.at(-1));

  const table = await db.createTable("docs", rows(0, 20), home);
  await table.add(rows(20, 300));
  found.nearest = (await table.search([7, 1]).limit(1).toArray()).map((row) => row.id);
  found.filtered = (await table.query().where("id >= 298").select(["word"]).toArray()).map((row) => row.word).sort();
  await table.update({ where: "id = 1", values: { word: "new" } });
  await table.delete("id > 280");
  await table.mergeInsert("id").whenMatchedUpdateAll().whenNotMatchedInsertAll().execute(rows(280, 282));
  await table.createIndex("id", { config: lancedb.Index.btree() });
  await table.createIndex("word", { config: lancedb.Index.fts() });
  found.indices = (await table.listIndices()).map((index) => index.name).sort();
  found.words = (await table.search("w42", "fts", ["word"]).limit(1).toArray()).map((row) => row.id);
  found.counts = [await table.countRows(), await table.countRows("word = 'new'")];

  const again = await db.openTable("docs", home);
  found.versions = [await again.version(), (await again.listVersions()).length];
  await again.checkout(1);
  found.old = await again.countRows();
  await again.checkoutLatest();
  await (await again.tags()).create("good", 2);
  await again.checkout("good");
  found.tagged = await again.countRows();
  await again.checkoutLatest();
  await again.optimize();
  found.optimised = [await again.countRows(), await again.version()];

  await db.createTable("other", rows(0, 1), home, { mode: "overwrite" });
  found.names = await db.tableNames(home);
  found.exists = await refused(() => db.createTable("other", rows(0, 1), home));
  found.missing = await refused(() => db.openTable("missing", home));
  await db.dropTable("other", home);
  found.left = await db.tableNames(home);
  return found;
}

tour(JSON.parse(process.argv[2])).then(
  (found) => console.log(JSON.stringify(found, (_, value) => (typeof value === "bigint" ? Number(value) : value))),
  (error) => {
    console.error(error);
    process.exitCode = 1;
  },
);

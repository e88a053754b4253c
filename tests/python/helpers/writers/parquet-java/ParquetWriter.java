// Writes Parquet with parquet-java: each line of the input is a file in JSON, which `differential_sources.Program` makes.
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import org.apache.parquet.column.ParquetProperties.WriterVersion;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.example.data.simple.SimpleGroupFactory;
import org.apache.parquet.hadoop.example.ExampleParquetWriter;
import org.apache.parquet.io.LocalOutputFile;
import org.apache.parquet.schema.LogicalTypeAnnotation;
import org.apache.parquet.schema.MessageType;
import org.apache.parquet.schema.PrimitiveType.PrimitiveTypeName;
import org.apache.parquet.schema.Types;

class ParquetWriter {
  static MessageType schema(JsonNode columns) {
    var made = Types.buildMessage();
    for (JsonNode column : columns) {
      String name = column.get("name").asText();
      switch (column.get("type").asText()) {
        case "int32" -> made.optional(PrimitiveTypeName.INT32).named(name);
        case "int64" -> made.optional(PrimitiveTypeName.INT64).named(name);
        case "double" -> made.optional(PrimitiveTypeName.DOUBLE).named(name);
        case "bool" -> made.optional(PrimitiveTypeName.BOOLEAN).named(name);
        default -> made.optional(PrimitiveTypeName.BINARY).as(LogicalTypeAnnotation.stringType()).named(name);
      }
    }
    return made.named("row");
  }

  static void write(JsonNode wanted) throws Exception {
    JsonNode columns = wanted.get("columns");
    MessageType schema = schema(columns);
    int page = wanted.get("page").asInt();
    try (var writer = ExampleParquetWriter.builder(new LocalOutputFile(Path.of(wanted.get("path").asText())))
        .withType(schema)
        .withWriterVersion(wanted.get("version").asInt() == 1 ? WriterVersion.PARQUET_1_0 : WriterVersion.PARQUET_2_0)
        // It looks at the size after every hundred rows, so that a group has at least as many.
        .withRowGroupSize(64L * wanted.get("row_group").asInt())
        .withPageSize(page)
        .withPageRowCountLimit(page < 1000 ? 5 : 20_000)
        .build()) {
      for (JsonNode values : wanted.get("rows")) {
        Group row = new SimpleGroupFactory(schema).newGroup();
        for (int place = 0; place < columns.size(); place++) {
          JsonNode value = values.get(place);
          if (value.isNull()) continue;
          switch (columns.get(place).get("type").asText()) {
            case "int32" -> row.add(place, value.intValue());
            case "int64" -> row.add(place, value.longValue());
            case "double" -> row.add(place, value.doubleValue());
            case "bool" -> row.add(place, value.booleanValue());
            default -> row.add(place, value.asText());
          }
        }
        writer.write(row);
      }
    }
  }

  public static void main(String[] arguments) throws Exception {
    var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    var json = new ObjectMapper();
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      try {
        write(json.readTree(line));
        System.out.println("written");
      } catch (Exception error) {
        System.out.println(error.toString().replace('\n', ' '));
      }
    }
  }
}

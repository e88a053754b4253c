//! Tables of Iceberg with damaged parts, read through the whole stream to tensors.

use std::collections::BTreeMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tensorquery::Result;
use tensorquery::iceberg::{TravelTo, deletion_vector, positions_in};
use tensorquery::session::{LakeOrigin, LakeSource, PlanOptions, Session, SessionOptions};
use tensorquery::storage::StorageOptions;

use crate::avro::{avro_file, field, optional, record};
use crate::choices::Choices;
use crate::files::rows;
use crate::folder::Folder;
use crate::json::damaged;
use crate::panics::answer;
use crate::roaring::{framed, vector};

/// A file of 200 rows: id, name, day.
pub const ROWS: &[u8] = include_bytes!("../templates/rows.parquet");
pub const ROW_COUNT: u64 = 200;

/// The rows that are asked for beside all of them.
const FILTERED: &str = "SELECT id FROM t WHERE day > DATE '1970-02-01'";

/// Longer metadata are not read.
const MOST_BYTES: usize = 1 << 20;

const SNAPSHOT: i64 = 102;
const PARENT: i64 = 101;

/// The metadata of a table are damaged: its JSON, or the gzip around it.
pub fn read_iceberg_metadata(bytes: &[u8]) {
    let choices = &mut Choices::new(bytes);
    let table = Table::new(1 + choices.below(3));
    let look = look(choices);
    let is_packed = choices.below(2) == 1;
    let list = table.write_manifests(&mut Choices::new(&[]), &[]);
    let document = damaged(table.metadata(&list), choices, &[&list, &table.rows]);
    let mut file = document.to_string().into_bytes();
    if file.len() > MOST_BYTES {
        return;
    }
    if is_packed {
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        if choices.strikes() {
            // Spaces that are nothing on disk.
            file.resize(file.len() + (choices.below(256) << 20), b' ');
        }
        file = packer.write_all(&file).and_then(|()| packer.finish()).expect("memory takes it");
    }
    let name = if is_packed { "v1.gz.metadata.json" } else { "v1.metadata.json" };
    let path = table.folder.write(name, &choices.bytes(file));
    table.read(&path, look);
}

/// Manifest list, manifests and an Avro file of deletes are damaged.
pub fn read_iceberg_manifests(bytes: &[u8]) {
    let choices = &mut Choices::new(bytes);
    let table = Table::new(1 + choices.below(3));
    let look = look(choices);
    let blob = framed(&vector(&mut Choices::new(&[])).0, &mut Choices::new(&[]));
    let list = table.write_manifests(choices, &blob);
    let path = table.folder.write("v1.metadata.json", table.metadata(&list).to_string().as_bytes());
    table.read(&path, look);
}

/// A deletion vector is damaged: decoded by itself, as Iceberg and Delta have it, and read as a part of a table.
///
/// # Panics
/// Where a vector has other positions than it says.
pub fn read_vector(bytes: &[u8]) {
    let choices = &mut Choices::new(bytes);
    let look = look(choices);
    let (body, positions) = vector(choices);
    let blob = framed(&body, choices);
    answer(async {
        for found in [positions_in(&body, positions), deletion_vector(&blob, positions)] {
            let found = found?;
            assert_eq!(found.len(), positions);
            let seen = found.iter().take(1 << 20).count() as u64;
            assert_eq!(seen, positions.min(1 << 20));
        }
        Ok(())
    });
    let table = Table::new(3);
    let (offset, length) = (choices.number(4), choices.length(blob.len()));
    let mut file = b"PFA1".to_vec();
    file.extend_from_slice(&blob);
    file.extend_from_slice(b"PFA1");
    let place = Vector { file, offset, length, positions };
    let list = table.write_with_vector(&mut Choices::new(&[]), &place);
    let path = table.folder.write("v1.metadata.json", table.metadata(&list).to_string().as_bytes());
    table.read(&path, look);
}

/// A puffin file, and what the manifest says of the vector in it.
struct Vector {
    file: Vec<u8>,
    offset: u64,
    length: u64,
    positions: u64,
}

/// A table of one data file, and one of deletes: by equality in Avro, by position in Avro, or a vector.
pub struct Table {
    pub folder: Folder,
    version: usize,
    pub rows: String,
}

impl Table {
    pub fn new(version: usize) -> Self {
        let folder = Folder::new();
        let rows = folder.write("rows.parquet", ROWS);
        Self { folder, version, rows }
    }

    /// Writes a list of two manifests, and says its path. A table of version 3 has a vector of these bytes, if there are any.
    pub fn write_manifests(&self, choices: &mut Choices<'_>, blob: &[u8]) -> String {
        let mut file = b"PFA1".to_vec();
        file.extend_from_slice(blob);
        self.write_with_vector(
            choices,
            &Vector { file, offset: 4, length: blob.len() as u64, positions: 3 },
        )
    }

    fn write_with_vector(&self, choices: &mut Choices<'_>, vector: &Vector) -> String {
        let mut manifests = vec![(0, self.data_manifest(choices))];
        if self.version > 1 && vector.length > 0 {
            manifests.push((1, self.delete_manifest(choices, vector)));
        }
        let listed: Vec<Value> = manifests
            .iter()
            .map(|(content, path)| {
                json!({
                    "manifest_path": path, "manifest_length": 1000, "partition_spec_id": 0, "content": content, "sequence_number": 1 + content,
                    "min_sequence_number": 1, "added_snapshot_id": SNAPSHOT, "added_files_count": 1, "existing_files_count": 1,
                    "deleted_files_count": 0, "added_rows_count": 200, "existing_rows_count": 0, "deleted_rows_count": 0,
                    "partitions": [{"contains_null": false, "lower_bound": [0, 0, 0, 0], "upper_bound": [9, 0, 0, 0]}], "first_row_id": 0,
                })
            })
            .collect();
        let more = [
            ("format-version", json!(self.version.to_string())),
            ("snapshot-id", json!(SNAPSHOT.to_string())),
            ("sequence-number", json!("2")),
        ];
        let file = avro_file(&list_schema(self.version), &more, &listed, choices);
        self.folder.write("list.avro", &file)
    }

    fn data_manifest(&self, choices: &mut Choices<'_>) -> String {
        let bound = |day: u32| json!([{"key": 3, "value": day.to_le_bytes()}, {"key": 1, "value": u64::from(day).to_le_bytes()}]);
        let count = |number: u64| json!([{"key": 1, "value": number}, {"key": 2, "value": number}]);
        let file = json!({
            "content": 0, "file_path": self.rows, "file_format": "PARQUET", "partition": {"id_bucket": 0}, "record_count": ROW_COUNT,
            "file_size_in_bytes": ROWS.len(), "column_sizes": count(100), "value_counts": count(ROW_COUNT),
            "null_value_counts": count(0), "nan_value_counts": [], "lower_bounds": bound(0), "upper_bounds": bound(199),
            "split_offsets": [4], "sort_order_id": 0, "first_row_id": 0,
        });
        let row = json!({"status": 1, "snapshot_id": SNAPSHOT, "data_file": file});
        self.manifest("data", &[row], choices)
    }

    fn delete_manifest(&self, choices: &mut Choices<'_>, vector: &Vector) -> String {
        let mut file =
            json!({"partition": {"id_bucket": 0}, "record_count": 3, "equality_ids": null});
        let kind = if self.version > 2 { 0 } else { 1 + choices.below(3) };
        let more = match kind {
            0 => json!({
                "content": 1, "file_path": self.folder.write("v.puffin", &vector.file), "file_format": "PUFFIN",
                "file_size_in_bytes": vector.file.len(), "record_count": vector.positions, "referenced_data_file": self.rows,
                "content_offset": vector.offset, "content_size_in_bytes": vector.length,
            }),
            1 => {
                let fields = vec![
                    field("file_path", json!("string"), 2_147_483_546),
                    field("pos", json!("long"), 2_147_483_545),
                ];
                let rows: Vec<Value> =
                    (0..3).map(|pos| json!({"file_path": self.rows, "pos": pos})).collect();
                let file = avro_file(&record("d", fields), &[], &rows, choices);
                let path = self.folder.write("gone.avro", &file);
                json!({"content": 1, "file_path": path, "file_format": "AVRO", "file_size_in_bytes": file.len()})
            }
            2 => {
                let fields = vec![
                    optional("id", json!("long"), 1),
                    optional("name", json!("string"), 2),
                    optional("day", json!({"type": "int", "logicalType": "date"}), 3),
                ];
                let rows: Vec<Value> =
                    (0..3).map(|id| json!({"id": id, "name": "name 1"})).collect();
                let file = avro_file(&record("d", fields), &[], &rows, choices);
                let path = self.folder.write("gone.avro", &file);
                json!({"content": 2, "file_path": path, "file_format": "AVRO", "file_size_in_bytes": file.len(), "equality_ids": [1, 2]})
            }
            _ => json!({
                "content": 2, "file_path": self.rows, "file_format": "PARQUET", "file_size_in_bytes": ROWS.len(), "equality_ids": [3],
            }),
        };
        if let (Value::Object(file), Value::Object(more)) = (&mut file, more) {
            file.extend(more);
        }
        let row =
            json!({"status": 1, "snapshot_id": SNAPSHOT, "sequence_number": 2, "data_file": file});
        self.manifest("deletes", &[row], choices)
    }

    fn manifest(&self, content: &str, rows: &[Value], choices: &mut Choices<'_>) -> String {
        let more = [
            ("schema", schema()),
            ("schema-id", json!("0")),
            ("partition-spec", partition_fields()),
            ("partition-spec-id", json!("0")),
            ("format-version", json!(self.version.to_string())),
            ("content", json!(content)),
        ];
        let file = avro_file(&manifest_schema(self.version), &more, rows, choices);
        self.folder.write(&format!("{content}.avro"), &file)
    }

    /// The metadata of the table whose manifest list is at a path.
    pub fn metadata(&self, list: &str) -> Value {
        let snapshot = |id: i64, parent: Option<i64>, second: i64| {
            let mut snapshot = json!({
                "snapshot-id": id, "timestamp-ms": 1_700_000_000_000_i64 + second * 1000, "manifest-list": list,
                "summary": {"operation": "append", "added-records": "200"}, "schema-id": 0,
            });
            if self.version > 1 {
                snapshot["sequence-number"] = json!(second);
            }
            if self.version > 2 {
                snapshot["first-row-id"] = json!(0);
                snapshot["added-rows"] = json!(ROW_COUNT);
            }
            if let Some(parent) = parent {
                snapshot["parent-snapshot-id"] = json!(parent);
            }
            snapshot
        };
        let mut made = json!({
            "format-version": self.version, "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1", "location": self.folder.path(""),
            "last-updated-ms": 1_700_000_002_000_i64, "last-column-id": 5, "current-schema-id": 0, "schemas": [schema()],
            "default-spec-id": 0, "partition-specs": [{"spec-id": 0, "fields": partition_fields()}], "last-partition-id": 1000,
            "default-sort-order-id": 1,
            "sort-orders": [{"order-id": 0, "fields": []}, {"order-id": 1, "fields": [
                {"transform": "identity", "source-id": 1, "direction": "asc", "null-order": "nulls-first"}]}],
            "properties": {"schema.name-mapping.default": name_mapping().to_string(), "owner": "nobody"},
            "current-snapshot-id": SNAPSHOT, "snapshots": [snapshot(PARENT, None, 1), snapshot(SNAPSHOT, Some(PARENT), 2)],
            "snapshot-log": [
                {"snapshot-id": PARENT, "timestamp-ms": 1_700_000_001_000_i64}, {"snapshot-id": SNAPSHOT, "timestamp-ms": 1_700_000_002_000_i64}],
            "metadata-log": [{"metadata-file": list, "timestamp-ms": 1_700_000_000_000_i64}],
            "refs": {"main": {"snapshot-id": SNAPSHOT, "type": "branch"}, "t1": {"snapshot-id": PARENT, "type": "tag", "max-ref-age-ms": 1000}},
        });
        match self.version {
            1 => {
                made["schema"] = schema();
                made["partition-spec"] = partition_fields();
            }
            2 => made["last-sequence-number"] = json!(2),
            _ => {
                made["last-sequence-number"] = json!(2);
                made["next-row-id"] = json!(400);
            }
        }
        made
    }

    /// Reads the table whose metadata are at a path: its rows, some of its rows, and what else is asked. Its own errors are answers.
    fn read(&self, path: &str, look: &str) {
        answer(async {
            let session = Session::try_new(SessionOptions::default())?;
            let origin =
                LakeOrigin::Path { location: path.to_owned(), properties: BTreeMap::new() };
            let source = LakeSource { origin, at: TravelTo::Current, scan_filter: None };
            let properties = [("type", "memory"), ("table.n.t", path)];
            let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned()));
            session.register_catalog("c", BTreeMap::from(properties), StorageOptions::default())?;
            session.register_lake("t", source).await?;
            let sql = format!("SELECT * FROM c.n.{look}");
            let _: Result<u64> = rows(&session, &sql, &PlanOptions::default()).await;
            let all = rows(&session, "SELECT * FROM t", &PlanOptions::default()).await?;
            let some = rows(&session, FILTERED, &PlanOptions::default()).await?;
            assert!(some <= all, "{some} rows of {all} pass a filter");
            Ok(())
        });
    }
}

/// What else is asked of a table `t`: its metadata tables, and points of its history.
const LOOKS: &[&str] = &[
    "\"t$files\"",
    "\"t$manifests\"",
    "\"t$partitions\"",
    "\"t$snapshots\"",
    "\"t$history\"",
    "\"t$refs\"",
    "t FOR VERSION AS OF 101",
    "t FOR VERSION AS OF 't1'",
    "t FOR TIMESTAMP AS OF '2023-11-14 22:13:21'",
];

/// Chooses what else is asked of a table.
pub fn look(choices: &mut Choices<'_>) -> &'static str {
    choices.one_of::<&str>(LOOKS)
}

fn schema() -> Value {
    json!({"type": "struct", "schema-id": 0, "fields": [
        {"id": 1, "name": "id", "required": false, "type": "long"},
        {"id": 2, "name": "name", "required": false, "type": "string"},
        {"id": 3, "name": "day", "required": false, "type": "date"},
        {"id": 4, "name": "late", "required": false, "type": "decimal(9,2)", "initial-default": null},
        {"id": 5, "name": "list", "required": false, "type": {"type": "list", "element-id": 6, "element-required": false, "element":
            {"type": "map", "key-id": 7, "key": "string", "value-id": 8, "value-required": false, "value": "double"}}},
    ]})
}

fn partition_fields() -> Value {
    json!([{"name": "id_bucket", "transform": "bucket[16]", "source-id": 1, "field-id": 1000}])
}

fn name_mapping() -> Value {
    json!([{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["name", "title"], "fields": []}])
}

fn list_schema(version: usize) -> Value {
    let mut fields = vec![
        field("manifest_path", json!("string"), 500),
        field("manifest_length", json!("long"), 501),
        field("partition_spec_id", json!("int"), 502),
    ];
    if version > 1 {
        fields.extend([
            field("content", json!("int"), 517),
            field("sequence_number", json!("long"), 515),
            field("min_sequence_number", json!("long"), 516),
        ]);
    }
    fields.extend([
        field("added_snapshot_id", json!("long"), 503),
        field("added_files_count", json!("int"), 504),
        field("existing_files_count", json!("int"), 505),
        field("deleted_files_count", json!("int"), 506),
        field("added_rows_count", json!("long"), 512),
        field("existing_rows_count", json!("long"), 513),
        field("deleted_rows_count", json!("long"), 514),
    ]);
    let summary = vec![
        field("contains_null", json!("boolean"), 509),
        optional("contains_nan", json!("boolean"), 518),
        optional("lower_bound", json!("bytes"), 510),
        optional("upper_bound", json!("bytes"), 511),
    ];
    let items = json!({"type": "array", "items": record("r508", summary), "element-id": 508});
    fields.push(optional("partitions", items, 507));
    fields.push(optional("key_metadata", json!("bytes"), 519));
    if version > 2 {
        fields.push(optional("first_row_id", json!("long"), 520));
    }
    record("manifest_file", fields)
}

fn manifest_schema(version: usize) -> Value {
    let map = |key: u32, kind: &str| {
        let pair = vec![field("key", json!("int"), key), field("value", json!(kind), key + 1)];
        let name = format!("k{key}_v{}", key + 1);
        json!({"type": "array", "items": record(&name, pair), "logicalType": "map"})
    };
    let list = |kind: &str, id: u32| json!({"type": "array", "items": kind, "element-id": id});
    let partition = record("r102", vec![optional("id_bucket", json!("int"), 1000)]);
    let mut file = Vec::new();
    if version > 1 {
        file.push(field("content", json!("int"), 134));
    }
    file.extend([
        field("file_path", json!("string"), 100),
        field("file_format", json!("string"), 101),
        field("partition", partition, 102),
        field("record_count", json!("long"), 103),
        field("file_size_in_bytes", json!("long"), 104),
    ]);
    if version == 1 {
        file.push(field("block_size_in_bytes", json!("long"), 105));
    }
    file.extend([
        optional("column_sizes", map(117, "long"), 108),
        optional("value_counts", map(119, "long"), 109),
        optional("null_value_counts", map(121, "long"), 110),
        optional("nan_value_counts", map(138, "long"), 137),
        optional("lower_bounds", map(126, "bytes"), 125),
        optional("upper_bounds", map(129, "bytes"), 128),
        optional("key_metadata", json!("bytes"), 131),
        optional("split_offsets", list("long", 133), 132),
        optional("equality_ids", list("int", 136), 135),
        optional("sort_order_id", json!("int"), 140),
    ]);
    if version > 2 {
        file.push(optional("first_row_id", json!("long"), 142));
    }
    if version > 1 {
        file.push(optional("referenced_data_file", json!("string"), 143));
    }
    if version > 2 {
        file.push(optional("content_offset", json!("long"), 144));
        file.push(optional("content_size_in_bytes", json!("long"), 145));
    }
    let mut fields = vec![field("status", json!("int"), 0)];
    if version == 1 {
        fields.push(field("snapshot_id", json!("long"), 1));
    } else {
        fields.extend([
            optional("snapshot_id", json!("long"), 1),
            optional("sequence_number", json!("long"), 3),
            optional("file_sequence_number", json!("long"), 4),
        ]);
    }
    fields.push(field("data_file", record("r2", file), 2));
    record("manifest_entry", fields)
}

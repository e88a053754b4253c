//! Tables of Delta whose logs have damaged parts, read through the whole stream to tensors.

use serde_json::{Value, json};
use tensorquery::Result;
use tensorquery::iceberg::TravelTo;
use tensorquery::session::{LakeOrigin, LakeSource, PlanOptions, Session, SessionOptions};
use tensorquery::storage::StoreAccess;

use crate::choices::Choices;
use crate::files::rows;
use crate::folder::Folder;
use crate::iceberg::{ROW_COUNT, ROWS};
use crate::json::damaged;
use crate::panics::answer;
use crate::roaring::{framed, vector};

/// The digits of base 85, as ZeroMQ's Z85 has them.
const DIGITS: &[u8; 85] =
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

/// Longer commits are not read.
const MOST_BYTES: usize = 1 << 20;

/// Texts of logs.
const TEXTS: &[&str] = &[
    "deletionVectors",
    "columnMapping",
    "timestampNtz",
    "typeWidening",
    "v2Checkpoint",
    "nobodyKnows",
    "integer",
    "timestamp_ntz",
    "delta.columnMapping.mode",
    "delta.columnMapping.id",
    "delta.columnMapping.physicalName",
    "delta.invariants",
    "physical",
    "ab^-aqEH.-t@S}K{vb[*k^",
    "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
];

/// A commit, the pointer to a checkpoint or a deletion vector is damaged.
pub fn read_delta_log(bytes: &[u8]) {
    let choices = &mut Choices::new(bytes);
    let folder = Folder::new();
    folder.write("rows.parquet", ROWS);
    let is_apart = choices.below(2) == 1;
    let mapped = choices.below(2) == 1;
    let (body, positions) = vector(choices);
    let place = if is_apart {
        let blob = framed(&body, choices);
        let mut file = vec![1];
        file.extend_from_slice(&blob);
        folder.write("vector.bin", &file);
        json!({"storageType": "p", "pathOrInlineDv": folder.path("vector.bin"), "offset": 1, "sizeInBytes": body.len(), "cardinality": positions})
    } else {
        json!({"storageType": "i", "pathOrInlineDv": base_85(&body), "sizeInBytes": body.len(), "cardinality": positions})
    };
    let stats = json!({
        "numRecords": ROW_COUNT, "minValues": {"id": 0, "name": "name 0", "day": "1970-01-01"},
        "maxValues": {"id": 199, "name": "name 4", "day": "1970-07-19"}, "nullCount": {"id": 0, "name": 29, "day": 0}, "tightBounds": false,
    });
    let stats = damaged(stats, choices, TEXTS).to_string();
    let schema = damaged(schema(mapped), choices, TEXTS).to_string();
    let mode = if mapped { "name" } else { "none" };
    let first = [
        json!({"commitInfo": {"timestamp": 1_700_000_000_000_i64, "operation": "WRITE", "operationParameters": {"mode": "Append"},
            "operationMetrics": {"numFiles": "1"}, "engineInfo": "fuzz", "inCommitTimestamp": 1_700_000_000_000_i64}}),
        json!({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors", "columnMapping"],
            "writerFeatures": ["deletionVectors", "columnMapping"]}}),
        json!({"metaData": {"id": "9c12d441-03fe-4693-9a96-a0705ddf69c1", "format": {"provider": "parquet", "options": {}}, "schemaString": schema,
            "partitionColumns": ["part"], "createdTime": 0, "configuration": {"delta.columnMapping.mode": mode, "delta.enableDeletionVectors": "true"}}}),
        json!({"add": {"path": "rows.parquet", "partitionValues": {"part": "7"}, "size": ROWS.len(), "modificationTime": 0, "dataChange": true,
            "stats": stats}}),
    ];
    let second = [
        json!({"remove": {"path": "rows.parquet", "dataChange": true, "deletionTimestamp": 0}}),
        json!({"add": {"path": "rows.parquet", "partitionValues": {"part": null}, "size": ROWS.len(), "modificationTime": 0, "dataChange": true,
            "stats": stats, "deletionVector": place}}),
    ];
    for (number, actions) in [&first[..], &second[..]].iter().enumerate() {
        let mut commit = Vec::new();
        for action in *actions {
            commit
                .extend_from_slice(damaged(action.clone(), choices, TEXTS).to_string().as_bytes());
            commit.push(b'\n');
        }
        if commit.len() > MOST_BYTES {
            return;
        }
        folder.write(&format!("_delta_log/{number:020}.json"), &choices.bytes(commit));
    }
    if choices.strikes() {
        let pointer = json!({"version": 1, "size": 4, "parts": null, "sizeInBytes": 1000, "checkpointSchema": {}});
        let pointer = damaged(pointer, choices, TEXTS).to_string();
        folder.write("_delta_log/_last_checkpoint", pointer.as_bytes());
    }
    read(&folder);
}

fn read(folder: &Folder) {
    answer(async {
        let session = Session::try_new(SessionOptions::default())?;
        let location = folder.path("");
        let origin = LakeOrigin::Delta { location, access: StoreAccess::default() };
        let source = LakeSource { origin, at: TravelTo::Current, scan_filter: None };
        session.register_lake("t", source).await?;
        for kind in ["history", "files"] {
            let sql = format!("SELECT * FROM \"t${kind}\"");
            let _: Result<u64> = rows(&session, &sql, &PlanOptions::default()).await;
        }
        let all = rows(&session, "SELECT * FROM t", &PlanOptions::default()).await?;
        let filtered = "SELECT id FROM t WHERE day > DATE '1970-02-01'";
        let some = rows(&session, filtered, &PlanOptions::default()).await?;
        assert!(some <= all, "{some} rows of {all} pass a filter");
        Ok(())
    });
}

fn schema(mapped: bool) -> Value {
    let column = |id: u32, name: &str, kind: Value| {
        let metadata = match mapped {
            true => {
                json!({"delta.columnMapping.id": id, "delta.columnMapping.physicalName": name})
            }
            false => json!({}),
        };
        json!({"name": name, "type": kind, "nullable": true, "metadata": metadata})
    };
    let list = json!({"type": "array", "elementType": "double", "containsNull": true});
    let map =
        json!({"type": "map", "keyType": "string", "valueType": list, "valueContainsNull": true});
    json!({"type": "struct", "fields": [
        column(1, "id", json!("long")),
        column(2, "name", json!("string")),
        column(3, "day", json!("date")),
        column(4, "part", json!("integer")),
        column(5, "late", json!("decimal(9,2)")),
        column(6, "map", map),
    ]})
}

/// Whole words in base 85.
fn base_85(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(4) {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        let word = u32::from_be_bytes(word);
        for place in (0..5).rev() {
            text.push(char::from(DIGITS[(word / 85_u32.pow(place) % 85) as usize]));
        }
    }
    text
}

//! The features of the format that are read here. The protocol demands that a reader refuses a
//! table with any other: <https://github.com/delta-io/delta/blob/master/PROTOCOL.md#table-features>.

use super::actions::Protocol;
use crate::{Error, ErrorKind, Result, list_names};

/// The newest version of the protocol for readers.
const NEWEST: i32 = 3;

/// The features of readers that are known here.
const READ: &[&str] = &[
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
];

/// Demands that everything a table asks of its readers is known here.
///
/// # Errors
/// `UnsupportedType` naming the table and the features.
pub fn check_protocol(protocol: &Protocol, table: &str) -> Result<()> {
    let refused = |what: String| Err(Error::new(ErrorKind::UnsupportedType, what));
    if protocol.min_reader_version > NEWEST {
        return refused(format!(
            "table {table} asks for version {} of Delta's protocol for readers; versions up to {NEWEST} are read",
            protocol.min_reader_version
        ));
    }
    let asked = protocol.reader_features.iter().flatten().map(String::as_str);
    let unknown: Vec<&str> = asked.filter(|name| !READ.contains(name)).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    refused(format!(
        "table {table} uses {} of Delta's, which {} not supported; features that are read: {}. Drop it with Delta's own \
         tools (ALTER TABLE … DROP FEATURE), or copy the table without it",
        list_names(&unknown),
        if unknown.len() == 1 { "is" } else { "are" },
        list_names(READ)
    ))
}

/// Returns true if columns may have other names in files than in the schema.
pub fn may_map_columns(protocol: &Protocol) -> bool {
    protocol.min_reader_version == 2
        || protocol.reader_features.iter().flatten().any(|name| name == "columnMapping")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_features_are_refused_by_name() {
        let of = |version, features: &[&str]| Protocol {
            min_reader_version: version,
            reader_features: Some(features.iter().map(|name| (*name).to_owned()).collect()),
        };
        assert!(check_protocol(&of(3, READ), "t").is_ok());
        assert!(check_protocol(&of(4, &[]), "t").is_err());
        for feature in ["variantType", "catalogManaged", "checkConstraintsOfTomorrow"] {
            let told = check_protocol(&of(3, &["deletionVectors", feature]), "t").unwrap_err();
            assert!(told.to_string().contains(feature), "{told}");
        }
    }
}

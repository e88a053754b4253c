//! Texts of a log. A checkpoint has those of thousands of files in a column, which its files share:
//! a copy of each one would cost more than to read the checkpoint.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, MapArray, StringArray};
use serde::Deserialize;

/// A text: its own, or a row of a column.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "String")]
pub enum Text {
    /// A commit's.
    Own(Box<str>),
    /// A checkpoint's. The row is not null.
    Shared(Arc<StringArray>, usize),
}

impl Text {
    /// The text.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Own(text) => text,
            Self::Shared(column, row) => column.value(*row),
        }
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self::Own(text.into())
    }
}

/// The texts of a file's partition columns, by physical name.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "BTreeMap<String, Option<String>>")]
pub enum PartitionTexts {
    /// A commit's.
    Own(BTreeMap<String, Option<String>>),
    /// A row of a checkpoint's.
    Shared(Arc<TextMaps>, usize),
}

impl PartitionTexts {
    /// The text of a column, which may be null; None where there is no such column.
    pub fn get(&self, column: &str) -> Option<Option<&str>> {
        match self {
            Self::Own(texts) => texts.get(column).map(Option::as_deref),
            // Of a name that comes twice the last one holds, as in JSON.
            Self::Shared(maps, row) => {
                maps.row(*row).rev().find(|(name, _)| *name == column).map(|(_, text)| text)
            }
        }
    }
}

impl Default for PartitionTexts {
    fn default() -> Self {
        Self::Own(BTreeMap::new())
    }
}

impl From<BTreeMap<String, Option<String>>> for PartitionTexts {
    fn from(texts: BTreeMap<String, Option<String>>) -> Self {
        Self::Own(texts)
    }
}

/// A column of maps of texts.
#[derive(Debug)]
pub struct TextMaps {
    /// Where each row's pairs start and end.
    pub maps: MapArray,
    /// The names of all pairs.
    pub keys: StringArray,
    /// Their texts.
    pub values: StringArray,
}

impl TextMaps {
    /// The names and texts of a row; none of a null.
    pub fn row(&self, row: usize) -> impl DoubleEndedIterator<Item = (&str, Option<&str>)> {
        let offsets = self.maps.value_offsets();
        let pairs = match self.maps.is_null(row) {
            true => 0..0,
            false => offsets[row] as usize..offsets[row + 1] as usize,
        };
        pairs.map(|at| {
            (self.keys.value(at), self.values.is_valid(at).then(|| self.values.value(at)))
        })
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{MapBuilder, StringBuilder};

    use super::*;

    #[test]
    fn a_row_of_a_column_is_the_map_that_a_commit_has() {
        let mut maps = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
        for pairs in [&[("a", Some("1")), ("b", None), ("a", Some("2"))][..], &[]] {
            for (name, text) in pairs {
                maps.keys().append_value(name);
                maps.values().append_option(*text);
            }
            maps.append(true).unwrap();
        }
        maps.append(false).unwrap();
        let maps = maps.finish();
        let column = |values: &dyn Array| values.as_any().downcast_ref().cloned().unwrap();
        let (keys, values): (StringArray, StringArray) =
            (column(maps.keys()), column(maps.values()));
        let maps = Arc::new(TextMaps { maps, keys, values });
        let json = r#"{"a":"1","b":null,"a":"2"}"#;
        for texts in
            [PartitionTexts::Shared(Arc::clone(&maps), 0), serde_json::from_str(json).unwrap()]
        {
            assert_eq!(texts.get("a"), Some(Some("2")));
            assert_eq!(texts.get("b"), Some(None));
            assert_eq!(texts.get("c"), None);
        }
        for row in [1, 2] {
            assert_eq!(PartitionTexts::Shared(Arc::clone(&maps), row).get("a"), None);
        }
    }
}

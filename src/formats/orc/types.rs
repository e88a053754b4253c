//! ORC types as Arrow types, with the attributes that Iceberg writes beside them.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit, UnionMode};
use orc_rust::schema::{DataType as OrcType, NamedColumn, RootDataType};

use super::wire::fields;
use crate::bounds::{LEVELS, TYPES};
use crate::{Error, ErrorKind, Result};

/// The metadata key of a field id, as the Parquet reader spells it.
pub const FIELD_ID: &str = "PARQUET:field_id";

/// The attribute in which Iceberg keeps a field's id; all of its attributes begin so.
const ICEBERG_PREFIX: &str = "iceberg.";
const ICEBERG_ID: &str = "iceberg.id";

/// The last kind of type that is known here (TIMESTAMP_INSTANT); later ones would be taken for
/// booleans.
const LAST_KIND: u64 = 18;
pub(super) const STRUCT: u64 = 12;

/// The attributes of one type in the footer, which `orc-rust` ignores.
#[derive(Clone, Debug, Default)]
pub struct TypeAttributes(HashMap<String, String>);

/// The types of a footer, which are a tree: each but the first one belongs to one before it.
#[derive(Debug, Default)]
pub struct TypeTree {
    attributes: Vec<TypeAttributes>,
    /// By type, its subtypes.
    subtypes: Vec<Vec<u64>>,
}

impl TypeTree {
    /// Reads one `Type` message of the footer, and refuses kinds of types that are not known.
    /// Returns how many parts it has.
    ///
    /// # Errors
    /// `Data` where the message is malformed, or there are more types than are read;
    /// `UnsupportedType` for a kind of a later ORC version.
    pub fn push(&mut self, message: &[u8]) -> Result<u64> {
        let number = self.attributes.len();
        TYPES.check(number as u64 + 1, "this ORC file has")?;
        let (mut attributes, mut subtypes) = (HashMap::new(), Vec::new());
        let mut parts = 0;
        for field in fields(message) {
            parts += 1;
            match field? {
                (1, kind) => check_kind(kind.number()?, number)?,
                (2, value) => subtypes.extend(value.numbers()?),
                (7, pair) => {
                    let (mut key, mut value) = ("", "");
                    for part in fields(pair.bytes()?) {
                        match part? {
                            (1, text) => key = text.text()?,
                            (2, text) => value = text.text()?,
                            _ => {}
                        }
                    }
                    attributes.insert(key.to_owned(), value.to_owned());
                }
                _ => {}
            }
        }
        parts += subtypes.len() as u64;
        self.attributes.push(TypeAttributes(attributes));
        self.subtypes.push(subtypes);
        Ok(parts)
    }

    /// The attributes by type.
    ///
    /// # Errors
    /// `Data` where the types are no tree, or one of more levels than are read.
    pub fn finish(self) -> Result<Vec<TypeAttributes>> {
        let wrong = |what: &str| {
            Error::data(format!("this is not a readable ORC file: a type of its schema {what}"))
        };
        // A type's level; 0 where it belongs to none yet.
        let mut levels = vec![0_u64; self.attributes.len()];
        for (number, subtypes) in self.subtypes.iter().enumerate() {
            let level = levels[number] + 1;
            LEVELS.check(level, "a type of this ORC file has")?;
            for subtype in subtypes {
                // A subtype stands behind its parent: a type that holds itself would never end.
                if *subtype <= number as u64 {
                    return Err(wrong("contains itself"));
                }
                let place = usize::try_from(*subtype).ok().and_then(|place| levels.get_mut(place));
                let place = place.ok_or_else(|| wrong("has a part that is not there"))?;
                if *place > 0 {
                    return Err(wrong("belongs to two others"));
                }
                *place = level;
            }
        }
        Ok(self.attributes)
    }
}

fn check_kind(kind: u64, number: usize) -> Result<()> {
    if kind > LAST_KIND {
        return Err(Error::new(
            ErrorKind::UnsupportedType,
            format!(
                "the ORC file has a column (number {number} of its types) of a kind that ORC 1 does not have \
                 ({kind}); write the file without it"
            ),
        ));
    }
    if number == 0 && kind != STRUCT {
        return Err(Error::new(
            ErrorKind::UnsupportedType,
            "the rows of the ORC file are no structs, so it has no columns; write it with a struct at its root",
        ));
    }
    Ok(())
}

impl TypeAttributes {
    /// As metadata of an Arrow field: the id under the key that Parquet files have, the rest as
    /// they are.
    fn metadata(&self) -> HashMap<String, String> {
        self.0
            .iter()
            .filter(|(key, _)| key.starts_with(ICEBERG_PREFIX))
            .map(|(key, value)| match key.as_str() {
                ICEBERG_ID => (FIELD_ID.to_owned(), value.clone()),
                _ => (key.clone(), value.clone()),
            })
            .collect()
    }
}

/// The Arrow schema of a file: every field nullable but the keys of maps, timestamps in
/// nanoseconds.
///
/// With `attributes` (by type number) the fields carry Iceberg's attributes as metadata, nested
/// ones included; without, none.
pub fn arrow_schema(root: &RootDataType, attributes: Option<&[TypeAttributes]>) -> Schema {
    Schema::new(arrow_fields(root.children(), attributes))
}

fn arrow_fields(columns: &[NamedColumn], attributes: Option<&[TypeAttributes]>) -> Fields {
    columns
        .iter()
        .map(|column| arrow_field(column.name(), column.data_type(), true, attributes))
        .collect()
}

fn arrow_field(
    name: &str,
    orc: &OrcType,
    nullable: bool,
    attributes: Option<&[TypeAttributes]>,
) -> FieldRef {
    let metadata = attributes
        .and_then(|all| all.get(orc.column_index()))
        .map(TypeAttributes::metadata)
        .unwrap_or_default();
    let data_type = match orc {
        OrcType::Struct { children, .. } => DataType::Struct(arrow_fields(children, attributes)),
        OrcType::List { child, .. } => DataType::List(arrow_field("item", child, true, attributes)),
        OrcType::Map { key, value, .. } => {
            let entries = vec![
                arrow_field("key", key, false, attributes),
                arrow_field("value", value, true, attributes),
            ];
            // The decoder makes an `entries` field of just this form.
            DataType::Map(Arc::new(Field::new_struct("entries", entries, false)), false)
        }
        OrcType::Union { variants, .. } => {
            let variants = variants.iter().enumerate().map(|(tag, variant)| {
                // At most 127, or the footer would have been refused.
                (tag as i8, arrow_field(&format!("_union_{tag}"), variant, true, attributes))
            });
            DataType::Union(variants.collect(), UnionMode::Sparse)
        }
        other => other.to_arrow_data_type(),
    };
    Arc::new(Field::new(name, data_type, nullable).with_metadata(metadata))
}

/// `file` with the units that `wanted` gives its timestamps: decoded in the unit that the table
/// has, timestamps beyond the range of nanoseconds (1677 to 2262) are read where the unit holds
/// them. Fields are matched by name, everything else is the file's own.
pub fn with_units_of(file: &Schema, wanted: &Schema) -> SchemaRef {
    Arc::new(Schema::new_with_metadata(
        fields_with_units(file.fields(), wanted.fields()),
        file.metadata().clone(),
    ))
}

/// `file` with the timestamps of each column, by its place, in one unit.
pub fn with_units(file: &Schema, unit: impl Fn(usize) -> TimeUnit) -> SchemaRef {
    let fields: Fields = file
        .fields()
        .iter()
        .enumerate()
        .map(|(place, field)| with_type(field, map_timestamps(field.data_type(), unit(place))))
        .collect();
    Arc::new(Schema::new_with_metadata(fields, file.metadata().clone()))
}

fn with_type(field: &Field, data_type: DataType) -> FieldRef {
    Arc::new(field.clone().with_data_type(data_type))
}

fn fields_with_units(file: &Fields, wanted: &Fields) -> Fields {
    file.iter()
        .map(|field| match wanted.iter().find(|other| other.name() == field.name()) {
            Some(other) => with_type(field, type_with_units(field.data_type(), other.data_type())),
            None => Arc::clone(field),
        })
        .collect()
}

fn type_with_units(file: &DataType, wanted: &DataType) -> DataType {
    use DataType::*;
    match (file, wanted) {
        (Timestamp(_, zone), Timestamp(unit, _)) => Timestamp(*unit, zone.clone()),
        (Struct(file), Struct(wanted)) => Struct(fields_with_units(file, wanted)),
        (
            List(item),
            List(other) | LargeList(other) | ListView(other) | FixedSizeList(other, _),
        ) => List(with_type(item, type_with_units(item.data_type(), other.data_type()))),
        // The two fields of the entries go by position: their names are the reader's choice.
        (Map(entries, sorted), Map(other, _)) => match (entries.data_type(), other.data_type()) {
            (Struct(pair), Struct(wanted)) => {
                let pair: Fields = pair
                    .iter()
                    .zip(wanted)
                    .map(|(field, other)| {
                        with_type(field, type_with_units(field.data_type(), other.data_type()))
                    })
                    .collect();
                Map(with_type(entries, Struct(pair)), *sorted)
            }
            _ => file.clone(),
        },
        _ => file.clone(),
    }
}

fn map_timestamps(file: &DataType, unit: TimeUnit) -> DataType {
    use DataType::*;
    let inner = |field: &FieldRef| with_type(field, map_timestamps(field.data_type(), unit));
    match file {
        Timestamp(_, zone) => Timestamp(unit, zone.clone()),
        Struct(fields) => Struct(fields.iter().map(inner).collect()),
        List(item) => List(inner(item)),
        Map(entries, sorted) => Map(inner(entries), *sorted),
        Union(variants, mode) => {
            Union(variants.iter().map(|(tag, field)| (tag, inner(field))).collect(), *mode)
        }
        other => other.clone(),
    }
}

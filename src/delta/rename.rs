//! Columns of data files under the names that the table has for them.
//!
//! As for Iceberg tables, a file's own schema is renamed while its footer is read. Columns that the
//! table does not have, such as dropped ones, get names that no column has.
//! Rules: <https://github.com/delta-io/delta/blob/master/PROTOCOL.md#column-mapping>.

use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType};
use parquet::schema::types::{SchemaDescriptor, Type as ParquetType};

use super::schema::{Column, Kind, Mapping};
use crate::formats::{FooterNames, malformed_schema};
use crate::iceberg::{rebuilt, renamed_primitive};
use crate::{Error, Result};

/// How a table's columns are found in its data files.
#[derive(Debug)]
pub struct FileNames {
    columns: Vec<Column>,
    mapping: Mapping,
}

impl FileNames {
    /// Names of these columns.
    pub fn new(columns: Vec<Column>, mapping: Mapping) -> Self {
        Self { columns, mapping }
    }

    /// Fields of a file, each as the column that it is.
    fn fields(
        &self,
        stored: &[Arc<ParquetType>],
        columns: &[Column],
    ) -> Result<Vec<Arc<ParquetType>>> {
        let mut places: Vec<Option<&Column>> = vec![None; stored.len()];
        for column in columns {
            let Some(place) = self.find(stored, column)? else { continue };
            if let Some(other) = places[place].replace(column) {
                return Err(Error::data(format!(
                    "the columns {:?} and {:?} of the table are one column {:?} of the data file",
                    other.name,
                    column.name,
                    stored[place].name()
                )));
            }
        }
        let renamed =
            stored.iter().zip(places).enumerate().map(|(place, (field, column))| match column {
                Some(column) => self.typed(field, &column.name, Some(&column.kind)),
                None => self.typed(field, &format!("\u{1}column {place}"), None),
            });
        renamed.collect()
    }

    /// The place of a column among the fields of a file; None where the file does not have it.
    fn find(&self, stored: &[Arc<ParquetType>], column: &Column) -> Result<Option<usize>> {
        // The columns of changes have no id.
        if self.mapping == Mapping::Id && column.id.is_some() {
            return Ok(stored.iter().position(|field| id_of(field) == column.id));
        }
        let exact = stored.iter().position(|field| field.name() == column.physical);
        if exact.is_some() {
            return Ok(exact);
        }
        // Delta's names have no case, and other programs' files may have another one.
        let is_alike = |field: &Arc<ParquetType>| {
            field.name().to_lowercase() == column.physical.to_lowercase()
        };
        let mut alike = stored.iter().enumerate().filter(|(_, field)| is_alike(field));
        match (alike.next(), alike.next()) {
            (Some((place, _)), None) => Ok(Some(place)),
            (None, _) => Ok(None),
            (Some((_, one)), Some((_, other))) => Err(Error::data(format!(
                "the data file has the columns {:?} and {:?}, and either may be column {:?} of the table",
                one.name(),
                other.name(),
                column.name
            ))),
        }
    }

    /// `file` under another name, and the fields below it as in `kind`. A file that has another
    /// kind of type stays as it is: reading refuses it.
    fn typed(
        &self,
        file: &Arc<ParquetType>,
        name: &str,
        kind: Option<&Kind>,
    ) -> Result<Arc<ParquetType>> {
        if file.is_primitive() {
            return renamed_primitive(file, name);
        }
        let info = file.get_basic_info();
        let is_list = info.converted_type() == ConvertedType::LIST
            || info.logical_type_ref() == Some(&LogicalType::List);
        let is_map =
            matches!(info.converted_type(), ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE)
                || info.logical_type_ref() == Some(&LogicalType::Map);
        let children = match kind {
            Some(Kind::Struct(columns)) if !is_list && !is_map => {
                self.fields(file.get_fields(), columns)?
            }
            Some(Kind::List(element, _)) if is_list => vec![self.middle(file, element)?],
            Some(Kind::Map(key, value, _)) if is_map => vec![self.pairs(file, key, value)?],
            _ => file.get_fields().to_vec(),
        };
        rebuilt(file, name, children)
    }

    /// The repeated group between a list and its element, or the repeated element itself, by the
    /// rules of the Parquet format for old writers.
    fn middle(&self, list: &ParquetType, element: &Kind) -> Result<Arc<ParquetType>> {
        let [middle] = list.get_fields() else { return Err(odd("list", list.name())) };
        let is_element = middle.is_primitive()
            || middle.get_fields().len() != 1
            || middle.name() == "array"
            || middle.name() == format!("{}_tuple", list.name());
        if is_element {
            return self.typed(middle, middle.name(), Some(element));
        }
        let child = self.typed(&middle.get_fields()[0], "element", Some(element))?;
        rebuilt(middle, middle.name(), vec![child])
    }

    fn pairs(&self, map: &ParquetType, key: &Kind, value: &Kind) -> Result<Arc<ParquetType>> {
        let [middle] = map.get_fields() else { return Err(odd("map", map.name())) };
        if middle.is_primitive() {
            return Err(odd("map", map.name()));
        }
        let [file_key, file_value] = middle.get_fields() else {
            return Err(odd("map", map.name()));
        };
        let key = self.typed(file_key, "key", Some(key))?;
        let value = self.typed(file_value, "value", Some(value))?;
        rebuilt(middle, "key_value", vec![key, value])
    }
}

impl FooterNames for FileNames {
    fn rename(&self, file: &SchemaDescriptor) -> Result<SchemaDescriptor> {
        let root = file.root_schema();
        let has_ids = root.get_fields().iter().any(|field| id_of(field).is_some());
        if self.mapping == Mapping::Id && !has_ids {
            return Err(Error::data(
                "the table finds its columns by field ids, and the data file has none",
            ));
        }
        let fields = self.fields(root.get_fields(), &self.columns)?;
        let root = ParquetType::group_type_builder(root.name()).with_fields(fields).build();
        Ok(SchemaDescriptor::new(Arc::new(root.map_err(malformed_schema)?)))
    }
}

fn id_of(field: &ParquetType) -> Option<i32> {
    let info = field.get_basic_info();
    info.has_id().then(|| info.id())
}

fn odd(kind: &str, name: &str) -> Error {
    Error::data(format!("the {kind} {name:?} of the data file is malformed"))
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::DataType;
    use parquet::schema::parser::parse_message_type;

    use super::*;

    fn column(name: &str, physical: &str, id: i32, kind: Kind) -> Column {
        Column {
            name: name.to_owned(),
            physical: physical.to_owned(),
            id: Some(id),
            is_nullable: true,
            kind,
            former: Vec::new(),
        }
    }

    fn renamed(columns: Vec<Column>, mapping: Mapping, file: &str) -> Vec<String> {
        let file = SchemaDescriptor::new(Arc::new(parse_message_type(file).unwrap()));
        let renamed = FileNames::new(columns, mapping).rename(&file).unwrap();
        renamed.columns().iter().map(|column| column.path().string()).collect()
    }

    #[test]
    fn a_column_is_found_by_what_the_table_says() {
        let long = || Kind::Primitive(DataType::Int64);
        // `b` was dropped, and another column of that name came.
        let inner = vec![column("x", "col-x", 4, long())];
        let columns = || {
            vec![
                column("renamed", "a", 1, long()),
                column("b", "col-b", 3, long()),
                column("s", "s", 2, Kind::List(Box::new(Kind::Struct(inner.clone())), true)),
            ]
        };
        let file = "message m { optional int64 a = 1; optional int64 b = 9; \
                    optional group s (LIST) = 2 { repeated group list { optional group element \
                    { optional int64 col-x = 4; optional int64 x = 7; } } } }";
        let named =
            ["renamed", "\u{1}column 1", "s.list.element.x", "s.list.element.\u{1}column 1"];
        assert_eq!(renamed(columns(), Mapping::Name, file), named);
        assert_eq!(renamed(columns(), Mapping::Id, file), named);
    }

    #[test]
    fn names_without_mapping_have_no_case() {
        let columns = vec![column("Id", "Id", 1, Kind::Primitive(DataType::Int64))];
        assert_eq!(renamed(columns, Mapping::None, "message m { optional int64 id; }"), ["Id"]);
    }
}

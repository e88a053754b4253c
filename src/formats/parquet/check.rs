//! Footers of Parquet files, looked at before the `parquet` crate decodes them, and after it did.
//!
//! The crate takes memory for as many children as an element of a schema declares, and calls itself
//! for each level: a file of a hundred bytes ends the process. It trusts the schema for a column's
//! type, even if the column's chunks contradict it. And it panics, or its callers read without end,
//! where chunks lie nowhere or row groups have rows that no column has.

use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};

use super::shapes::{COLUMN, COLUMN_CHUNK, FOOTER, ROW_GROUP, SCHEMA_ELEMENT};
use super::thrift::Walk;
use crate::bounds::{LEVELS, TYPES};

/// As the format numbers them.
const PHYSICAL: [&str; 8] =
    ["BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"];

/// An element of a schema, as written.
#[derive(Default)]
struct Element<'a> {
    name: &'a [u8],
    physical: Option<i64>,
    children: i64,
    /// The place of the one whose child it is.
    parent: usize,
}

/// Refuses a footer that is not whole, or a schema that is no tree, or chunks of other types than
/// the schema's.
///
/// # Errors
/// `Data`, with the first fault of the footer.
pub(super) fn check_stored(footer: &[u8]) -> Result<()> {
    let (mut schema, mut wrong) = (None, None);
    let mut walk = Walk::new(footer);
    let is_whole = walk.structure_by(FOOTER, 0, |walk, field, kind| match field {
        // Of two schemas the first one counts, and it has to come before the row groups.
        2 if Walk::is_list(kind) && schema.is_none() => {
            let mut elements = Vec::new();
            walk.structures(|walk| {
                elements.push(element(walk)?);
                Some(())
            })?;
            match leaves(&mut elements) {
                Ok(leaves) => schema = Some((elements, leaves)),
                Err(what) => wrong = wrong.take().or(Some(what)),
            }
            Some(true)
        }
        4 if Walk::is_list(kind) => {
            let Some((elements, leaves)) = &schema else { return Some(false) };
            let mut number = 0;
            walk.structures(|walk| {
                let other = other_type(walk, elements, leaves)?;
                wrong = wrong.take().or(other.map(|what| format!("row group {number}: {what}")));
                number += 1;
                Some(())
            })?;
            Some(true)
        }
        _ => Some(false),
    });
    match (is_whole, wrong) {
        (Some(()), None) => Ok(()),
        (Some(()), Some(what)) => Err(ParquetError::General(what)),
        (None, _) => Err(ParquetError::General(
            "its footer is cut off, declares more than it holds, or has a field of another type than the format \
             says"
                .to_owned(),
        )),
    }
}

fn element<'a>(walk: &mut Walk<'a>) -> Option<Element<'a>> {
    let mut element = Element::default();
    walk.structure_by(SCHEMA_ELEMENT, 1, |walk, field, kind| {
        match field {
            1 => element.physical = walk.number_ahead(kind),
            4 => element.name = walk.text_ahead(kind).unwrap_or_default(),
            5 => element.children = walk.number_ahead(kind)?,
            _ => (),
        }
        Some(false)
    })?;
    Some(element)
}

/// The places of those elements that are columns. Each element follows the one whose child it is.
fn leaves(elements: &mut [Element]) -> std::result::Result<Vec<usize>, String> {
    let (mut leaves, count) = (Vec::new(), elements.len());
    if count as u64 > TYPES.most() {
        return Err(TYPES.message("its schema has", TYPES.most()));
    }
    // The elements whose children come, and how many: of each, and of all.
    let mut open: Vec<(usize, usize)> = Vec::new();
    let mut due = 0;
    for (place, element) in elements.iter_mut().enumerate() {
        while open.pop_if(|(_, left)| *left == 0).is_some() {}
        match open.last_mut() {
            Some((parent, left)) => {
                (element.parent, *left) = (*parent, *left - 1);
                due -= 1;
            }
            None if place > 0 => return Err("its schema has two roots".to_owned()),
            None => (),
        }
        let children = usize::try_from(element.children).ok();
        let fits = |children: &usize| *children < count - place - due;
        let Some(children) = children.filter(fits) else {
            let declared = element.children;
            return Err(format!(
                "an element of its schema declares {declared} children, and the schema has {count} \
                 elements in all"
            ));
        };
        if children > 0 {
            open.push((place, children));
            due += children;
            let most = LEVELS.most();
            if open.len() as u64 > most {
                return Err(LEVELS.message("its schema has", most));
            }
        } else if element.physical.is_some() {
            leaves.push(place);
        }
    }
    Ok(leaves)
}

/// Walks through a row group and returns the fault in a column's type, if there is one.
fn other_type(walk: &mut Walk, elements: &[Element], leaves: &[usize]) -> Option<Option<String>> {
    let mut wrong = None;
    walk.structure_by(ROW_GROUP, 1, |walk, field, kind| {
        if field != 1 || !Walk::is_list(kind) {
            return Some(false);
        }
        let mut leaves = leaves.iter();
        walk.structures(|walk| {
            let leaf = leaves.next().copied();
            let mut found = None;
            walk.structure_by(COLUMN_CHUNK, 2, |walk, field, kind| {
                if field != 3 || !Walk::is_struct(kind) {
                    return Some(false);
                }
                walk.structure_by(COLUMN, 3, |walk, field, kind| {
                    if field == 1 {
                        found = walk.number_ahead(kind);
                    }
                    Some(false)
                })?;
                Some(true)
            })?;
            if let (Some(found), Some(leaf)) = (found, leaf)
                && let Some(expected) = elements[leaf].physical
                && found != expected
            {
                wrong = wrong.take().or_else(|| {
                    let (path, found, expected) =
                        (path(elements, leaf), name_of(found), name_of(expected));
                    Some(format!("column {path:?} is {found}, and {expected} in the schema"))
                });
            }
            Some(())
        })?;
        Some(true)
    })?;
    Some(wrong)
}

fn name_of(physical: i64) -> String {
    let known = usize::try_from(physical).ok().and_then(|number| PHYSICAL.get(number));
    known.map_or_else(|| format!("of type {physical}"), ToString::to_string)
}

fn path(elements: &[Element], mut place: usize) -> String {
    let mut names = Vec::new();
    while place > 0 {
        names.push(String::from_utf8_lossy(elements[place].name));
        place = elements[place].parent;
    }
    names.reverse();
    names.join(".")
}

/// Refuses row groups that cannot be: with chunks that lie nowhere, or rows that no column has.
///
/// # Errors
/// `Data`, with the first fault of the row groups.
pub(super) fn check_groups(footer: &ParquetMetaData) -> Result<()> {
    let mut all = 0_i64;
    for (number, group) in footer.row_groups().iter().enumerate() {
        let wrong =
            |what: String| Err(ParquetError::General(format!("row group {number}: {what}")));
        let rows = group.num_rows();
        if rows < 0 {
            return wrong(format!("it has {rows} rows"));
        }
        let Some(sum) = all.checked_add(rows) else {
            return wrong(format!("it has {rows} rows, and those before it {all}"));
        };
        all = sum;
        // Of a row group without rows nothing is read.
        for column in group.columns().iter().filter(|_| rows > 0) {
            let (start, bytes) = (start_of(column), column.compressed_size());
            if start < 0 || bytes < 0 {
                let path = column.column_path().string();
                return wrong(format!("column {path:?} begins at byte {start} and has {bytes}"));
            }
        }
        if let Some(column) = rows_of_none(group) {
            let (path, values) = (column.column_path().string(), column.num_values());
            return wrong(format!("it has {rows} rows, and column {path:?} {values} values"));
        }
    }
    Ok(())
}

/// Where the reader begins to read.
fn start_of(column: &ColumnChunkMetaData) -> i64 {
    column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset())
}

/// A column, if none has as many values as there are rows: NULLs are values, too. Where only some
/// do not, a writer may have counted otherwise. Lists have as many or more; they are asked where
/// there is nothing else.
fn rows_of_none(group: &RowGroupMetaData) -> Option<&ColumnChunkMetaData> {
    let (rows, columns) = (group.num_rows(), group.columns());
    let mut single = columns.iter().filter(|c| c.column_descr().max_rep_level() == 0).peekable();
    match single.peek().copied() {
        Some(first) => (!single.any(|column| column.num_values() == rows)).then_some(first),
        None => columns.first().filter(|_| columns.iter().all(|c| c.num_values() < rows)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the children that each element declares.
    fn columns(children: &[i64]) -> std::result::Result<Vec<usize>, String> {
        let element = |children: &i64| Element {
            physical: (*children == 0).then_some(1),
            children: *children,
            ..Element::default()
        };
        leaves(&mut children.iter().map(element).collect::<Vec<_>>())
    }

    #[test]
    fn columns_are_the_leaves_of_the_tree() {
        assert_eq!(columns(&[3, 0, 2, 0, 0, 0]).unwrap(), [1, 3, 4, 5]);
        assert_eq!(columns(&[2, 1, 1, 0, 0]).unwrap(), [3, 4]);
        let mut elements = vec![];
        for (name, children) in [("root", 2), ("a", 0), ("b", 1), ("list", 1), ("element", 0)] {
            let physical = (children == 0).then_some(1);
            elements.push(Element { name: name.as_bytes(), physical, children, parent: 0 });
        }
        assert_eq!(leaves(&mut elements).unwrap(), [1, 4]);
        assert_eq!(path(&elements, 4), "b.list.element");
    }

    #[test]
    fn what_declares_other_children_than_it_has_is_no_tree() {
        for declares in [
            &[i64::from(i32::MAX), 0][..],
            &[-1, 0],
            &[2, 0],
            // As many as there are, but not for each of them.
            &[3, 3, 3, 0],
            &[2, 2, 0, 0],
        ] {
            assert!(columns(declares).unwrap_err().contains("children"), "{declares:?}");
        }
        assert!(columns(&[1, 0, 0]).unwrap_err().contains("two roots"));
        let most = LEVELS.most() as usize;
        let mut deep = vec![1; most + 1];
        deep.push(0);
        assert!(columns(&deep).unwrap_err().contains("levels"));
        assert_eq!(columns(&deep[1..]).unwrap(), [most]);
    }
}

//! Dictionaries and strings as int64 codes, stable however the files encode them.

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray, downcast_integer_array,
};
use arrow::datatypes::{ArrowNativeType, DataType};
use datafusion::common::HashMap;

use super::column::{Column, ColumnSlice};
use super::dtype::DType;
use super::leaf::Leaf;
use super::nulls::Policy;
use super::options::{DecimalFormat, NullPolicy, Value};
use super::text::{TextArray, is_binary};
use crate::{Error, Result, list_names, suggestion};

/// How the rows of a column become codes.
#[derive(Debug)]
pub(super) struct Codes {
    source: Source,
    /// The code of a null row; None: a null is an error.
    pub(super) patch: Option<CodePatch>,
    /// The code of each category that the options name; None: the batch's own, as they appear.
    known: Option<HashMap<Box<[u8]>, i64>>,
}

/// The treatment of a null row.
#[derive(Clone, Debug)]
pub(super) enum CodePatch {
    /// Code 0, under a mask.
    Zero,
    /// The code of this category.
    Category(Box<[u8]>),
}

/// The source of categories. Each category is looked up by its bytes.
#[derive(Clone, Copy, Debug)]
enum Source {
    Text { binary: bool },
    Number(Leaf),
}

impl Source {
    /// The source of a string column or of a dictionary's values; None for other types.
    fn of(data_type: &DataType, decimal: DecimalFormat) -> Option<Self> {
        match is_binary(data_type) {
            Some(binary) => Some(Self::Text { binary }),
            None => Leaf::of(data_type, decimal).map(Self::Number),
        }
    }

    fn encode(self, value: &Value) -> Option<Box<[u8]>> {
        match (self, value) {
            (Self::Text { binary: false }, Value::Text(text)) => Some(text.as_bytes().into()),
            (Self::Text { binary: true }, Value::Bytes(bytes)) => Some(bytes.as_slice().into()),
            (Self::Number(leaf), value) => {
                leaf.dtype.encode(value).map(|scalar| scalar.as_bytes().into())
            }
            _ => None,
        }
    }

    fn decode(self, bytes: &[u8]) -> Value {
        match self {
            Self::Text { binary: false } => {
                Value::Text(String::from_utf8_lossy(bytes).into_owned())
            }
            Self::Text { binary: true } => Value::Bytes(bytes.to_vec()),
            Self::Number(leaf) => leaf.dtype.decode(bytes),
        }
    }

    fn form(self) -> &'static str {
        match self {
            Self::Text { binary: false } => "str",
            Self::Text { binary: true } => "bytes",
            Self::Number(leaf) => leaf.dtype.name(),
        }
    }
}

impl Codes {
    /// The plan for a string or dictionary column; None for other types. The caller sets the patch.
    pub(super) fn try_new(
        name: &str,
        data_type: &DataType,
        decimal: DecimalFormat,
        categories: Option<&Vec<Value>>,
    ) -> Result<Option<Self>> {
        let values = match data_type {
            DataType::Dictionary(_, values) => values.as_ref(),
            other => other,
        };
        let Some(source) = Source::of(values, decimal) else { return Ok(None) };
        let Some(categories) = categories else {
            return Ok(Some(Self { source, patch: None, known: None }));
        };
        if categories.is_empty() {
            return Err(Error::config(format!(
                "categories: the list of column {name:?} is empty; name at least one category, or leave \
                 the column out of `categories`"
            )));
        }
        let mut known = HashMap::with_capacity(categories.len());
        for (code, category) in (0_i64..).zip(categories) {
            let key = source.encode(category).ok_or_else(|| {
                Error::config(format!(
                    "categories: {category} cannot be a category of column {name:?} ({data_type}); \
                     allowed are values of type {}",
                    source.form()
                ))
            })?;
            if let Some(first) = known.insert(key, code) {
                return Err(Error::config(format!(
                    "categories: {category} stands twice in the list of column {name:?}, at {first} and \
                     {code}; each category needs one code"
                )));
            }
        }
        Ok(Some(Self { source, patch: None, known: Some(known) }))
    }

    /// True where the options name the categories, so that the output is a plain tensor.
    pub(super) fn is_fixed(&self) -> bool {
        self.known.is_some()
    }

    /// Sets the treatment of nulls by the column's policy.
    pub(super) fn follow(
        &mut self,
        policy: &Policy,
        name: &str,
        data_type: &DataType,
        nullable: bool,
    ) -> Result<()> {
        let is_category =
            |key: &[u8]| self.known.as_ref().is_none_or(|known| known.contains_key(key));
        let patch = match &policy.rule {
            NullPolicy::Error => None,
            NullPolicy::Mask => nullable.then_some(CodePatch::Zero),
            NullPolicy::Fill(value) => {
                self.source.encode(value).filter(|key| is_category(key)).map(CodePatch::Category)
            }
            NullPolicy::Nan => None,
        };
        let wanted = matches!(policy.rule, NullPolicy::Fill(_) | NullPolicy::Nan);
        if wanted && policy.explicit && patch.is_none() {
            let form = if self.is_fixed() { "one of its categories" } else { self.source.form() };
            return Err(policy.misfit(name, data_type, form));
        }
        self.patch = patch;
        Ok(())
    }

    /// Writes the codes of all rows; returns the batch's own categories, in order of first
    /// appearance.
    pub(super) fn write(
        &self,
        column: &Column,
        parts: &[ColumnSlice],
        target: &mut [u8],
    ) -> Result<Vec<Value>> {
        let mut coder = Coder { codes: self, column, seen: HashMap::new(), categories: Vec::new() };
        let mut rest = target;
        for part in parts {
            let (front, after) = rest.split_at_mut(part.array.len() * size_of::<i64>());
            let array = part.array.as_ref();
            match array.data_type() {
                DataType::Dictionary(_, _) => coder.write_dictionary(part, front)?,
                _ => {
                    let keys = Keys::of(self.source, &column.name, &part.array)?;
                    coder.write_rows(part, front, |coder, row| coder.code(keys.get(row)))?;
                }
            }
            rest = after;
        }
        Ok(coder.categories)
    }
}

/// The values of an array as bytes to look up.
enum Keys<'a> {
    Text(TextArray<'a>),
    Numbers { bytes: Vec<u8>, size: usize },
}

impl<'a> Keys<'a> {
    fn of(source: Source, column: &str, array: &'a ArrayRef) -> Result<Self> {
        match (source, TextArray::of(array)) {
            (Source::Number(leaf), _) => {
                let mut bytes = vec![0; array.len() * leaf.dtype.size()];
                let nulls = array.nulls();
                leaf.write(column, array, 0..array.len(), nulls, leaf.dtype, &mut bytes)?;
                Ok(Self::Numbers { bytes, size: leaf.dtype.size() })
            }
            (Source::Text { .. }, Some(texts)) => Ok(Self::Text(texts)),
            (Source::Text { .. }, None) => Err(Error::data(format!(
                "column {column:?}: a piece has values of type {} instead of strings",
                array.data_type()
            ))),
        }
    }

    fn get(&self, row: usize) -> &[u8] {
        match self {
            Self::Text(texts) => texts.get(row).as_bytes(),
            Self::Numbers { bytes, size } => &bytes[row * size..(row + 1) * size],
        }
    }
}

/// The codes of one batch under way.
struct Coder<'a> {
    codes: &'a Codes,
    column: &'a Column,
    seen: HashMap<Box<[u8]>, i64>,
    categories: Vec<Value>,
}

impl Coder<'_> {
    fn code(&mut self, key: &[u8]) -> Result<i64> {
        if let Some(known) = &self.codes.known {
            return known.get(key).copied().ok_or_else(|| self.unknown(known, key));
        }
        if let Some(code) = self.seen.get(key) {
            return Ok(*code);
        }
        let code = self.categories.len() as i64;
        self.seen.insert(key.into(), code);
        self.categories.push(self.codes.source.decode(key));
        Ok(code)
    }

    fn null_code(&mut self) -> Result<i64> {
        match &self.codes.patch {
            Some(CodePatch::Category(key)) => self.code(key),
            // Without a patch there are no nulls: `Converter::convert` has checked.
            Some(CodePatch::Zero) | None => Ok(0),
        }
    }

    fn unknown(&self, known: &HashMap<Box<[u8]>, i64>, key: &[u8]) -> Error {
        let source = self.codes.source;
        let mut order: Vec<(&i64, &Box<[u8]>)> =
            known.iter().map(|(key, code)| (code, key)).collect();
        order.sort_unstable();
        let plain = |key: &[u8]| match source.decode(key) {
            Value::Text(text) => text,
            other => other.to_string(),
        };
        let names: Vec<String> = order.iter().map(|(_, key)| plain(key)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Error::data(format!(
            "column {:?} has the value {}, which is not among its {} categories: {}{}; add it to \
             `categories`, or map it in SQL",
            self.column.name,
            source.decode(key),
            names.len(),
            list_names(&names),
            suggestion(&plain(key), names.iter().copied()),
        ))
    }

    fn write_rows(
        &mut self,
        part: &ColumnSlice,
        target: &mut [u8],
        mut code_of: impl FnMut(&mut Self, usize) -> Result<i64>,
    ) -> Result<()> {
        for (row, target) in target.chunks_exact_mut(size_of::<i64>()).enumerate() {
            let code = match &part.nulls {
                Some(nulls) if nulls.is_null(row) => self.null_code()?,
                _ => code_of(self, row)?,
            };
            target.copy_from_slice(&code.to_ne_bytes());
        }
        Ok(())
    }

    fn write_dictionary(&mut self, part: &ColumnSlice, target: &mut [u8]) -> Result<()> {
        let dictionary = part.array.as_any_dictionary();
        let keys = Keys::of(self.codes.source, &self.column.name, dictionary.values())?;
        let mut memo = Memo::new(dictionary.values().len(), part.array.len());
        let positions = dictionary.keys();
        downcast_integer_array!(
            positions => self.write_positions(part, target, positions, &keys, &mut memo),
            other => Err(Error::data(format!(
                "column {:?}: dictionary keys of type {other} are not integers",
                self.column.name
            ))),
        )
    }

    fn write_positions<K: ArrowPrimitiveType>(
        &mut self,
        part: &ColumnSlice,
        target: &mut [u8],
        positions: &PrimitiveArray<K>,
        keys: &Keys<'_>,
        memo: &mut Memo,
    ) -> Result<()> {
        let positions = positions.values();
        self.write_rows(part, target, |coder, row| {
            let position = positions[row].as_usize();
            match memo.get(position) {
                Some(code) => Ok(code),
                None => {
                    let code = coder.code(keys.get(position))?;
                    memo.set(position, code);
                    Ok(code)
                }
            }
        })
    }
}

/// The code of each position of one dictionary, once known. A table, unless the dictionary is so
/// much larger than the batch that clearing the table would cost more than hashing the rows.
enum Memo {
    Table(Vec<i64>),
    Map(HashMap<usize, i64>),
}

impl Memo {
    const UNKNOWN: i64 = -1;

    fn new(positions: usize, rows: usize) -> Self {
        if positions / 8 <= rows {
            Self::Table(vec![Self::UNKNOWN; positions])
        } else {
            Self::Map(HashMap::new())
        }
    }

    fn get(&self, position: usize) -> Option<i64> {
        match self {
            Self::Table(table) => Some(table[position]).filter(|code| *code != Self::UNKNOWN),
            Self::Map(map) => map.get(&position).copied(),
        }
    }

    fn set(&mut self, position: usize, code: i64) {
        match self {
            Self::Table(table) => table[position] = code,
            Self::Map(map) => {
                map.insert(position, code);
            }
        }
    }
}

/// The type that codes have.
pub(super) const CODE: DType = DType::Int64;

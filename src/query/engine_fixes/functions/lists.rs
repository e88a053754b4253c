//! Arguments of array functions as the lists that DataFusion 53 knows. It promises another type
//! than it makes of lists of a fixed length and of wide lists in lists, joins no lists of two
//! widths, and appends to values under a NULL.
//!
//! Upstream: apache/datafusion#14613, apache/datafusion#21702.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray, GenericListArray, OffsetSizeTrait, UInt64Array};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::DFSchema;
use datafusion::error::Result;
use datafusion::functions_nested::all_default_nested_functions;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};

use super::like_array;
use crate::basics::function_basics;

/// Functions whose result takes its type from all of their lists, or holds them.
const JOINING: [&str; 2] = ["array_concat", "array_repeat"];

/// Functions of lists, except functions that make a list of any values.
static OF_LISTS: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let all = all_default_nested_functions();
    let names = all.iter().map(|function| function.name().to_owned());
    names.filter(|name| !matches!(name.as_str(), "make_array" | "map")).collect()
});

/// Makes plain lists of others among the arguments of an array function; returns true where there
/// is one.
pub(super) fn plain_lists(function: &ScalarUDF, args: &mut [Expr], schema: &DFSchema) -> bool {
    if !OF_LISTS.contains(function.name()) {
        return false;
    }
    let types: Vec<_> = args.iter().map(|arg| arg.get_type(schema).ok()).collect();
    let lists = || types.iter().flatten().filter(|of| item_of(of).is_some());
    let joins = JOINING.contains(&function.name());
    let all_large = lists().all(|of| matches!(of, DataType::LargeList(_)));
    let is_nested = lists().any(|of| item_of(of).is_some_and(|item| item.data_type().is_list()));
    let is_large = function.name() != "array_concat" || (all_large && !is_nested);
    let mut changed = false;
    for (arg, of) in args.iter_mut().zip(&types) {
        let Some(of) = of else { continue };
        let plain = match (joins, item_of(of)) {
            (true, Some(_)) => plain(of, is_large),
            (false, Some(item)) if is_odd(of) => match of {
                DataType::LargeListView(_) => DataType::LargeList(Arc::clone(item)),
                _ => DataType::List(Arc::clone(item)),
            },
            _ => continue,
        };
        if plain != *of {
            let inner = std::mem::take(arg);
            let function = ScalarUDF::from(PlainList {
                signature: Signature::any(1, Volatility::Immutable),
                target: plain,
            });
            *arg = Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(function), vec![inner]));
            changed = true;
        }
    }
    changed
}

fn item_of(of: &DataType) -> Option<&FieldRef> {
    use DataType::{FixedSizeList, LargeList, LargeListView, List, ListView};
    match of {
        List(item) | ListView(item) | LargeList(item) | LargeListView(item) => Some(item),
        FixedSizeList(item, _) => Some(item),
        _ => None,
    }
}

/// Returns true if array functions do not take lists of a type as lists.
fn is_odd(of: &DataType) -> bool {
    use DataType::{FixedSizeList, LargeListView, ListView};
    matches!(of, FixedSizeList(..) | ListView(_) | LargeListView(_))
}

/// The type with plain lists, whose items are named as the engine names them; wide ones only where
/// `may_be_large`.
fn plain(of: &DataType, may_be_large: bool) -> DataType {
    let Some(item) = item_of(of) else { return of.clone() };
    let item = Arc::new(Field::new_list_field(plain(item.data_type(), may_be_large), true));
    match of {
        DataType::LargeList(_) | DataType::LargeListView(_) if may_be_large => {
            DataType::LargeList(item)
        }
        _ => DataType::List(item),
    }
}

/// A list as one of another width, with nothing under its NULLs.
#[derive(Debug, PartialEq, Eq, Hash)]
struct PlainList {
    signature: Signature,
    target: DataType,
}

impl ScalarUDFImpl for PlainList {
    function_basics!("plain_list");

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.target.clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name(), self.target.clone(), nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        like_array(&args.args[0], |lists| plain_array(lists, &self.target))
    }
}

fn plain_array(lists: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
    // The cast of a list of a fixed length keeps the name of its items.
    let lists = match (lists.data_type(), target) {
        (DataType::FixedSizeList(item, _), _) => cast(lists, &DataType::List(Arc::clone(item)))?,
        _ => Arc::clone(lists),
    };
    let lists = cast(&lists, target)?;
    match target {
        DataType::LargeList(_) => empty_nulls::<i64>(lists),
        _ => empty_nulls::<i32>(lists),
    }
}

/// Lists without the values that lie under NULLs.
fn empty_nulls<O: OffsetSizeTrait>(lists: ArrayRef) -> Result<ArrayRef> {
    let found: &GenericListArray<O> = lists.as_list();
    let Some(nulls) = found.nulls() else { return Ok(lists) };
    let offsets = found.value_offsets();
    let rows = || (0..found.len()).filter(|row| nulls.is_valid(*row));
    let values = rows().flat_map(|row| offsets[row].as_usize()..offsets[row + 1].as_usize());
    let kept: UInt64Array = values.map(|value| value as u64).collect();
    let lengths = (0..found.len()).map(|row| match nulls.is_valid(row) {
        true => (offsets[row + 1] - offsets[row]).as_usize(),
        false => 0,
    });
    let (DataType::List(item) | DataType::LargeList(item)) = found.data_type() else {
        return Ok(lists);
    };
    Ok(Arc::new(GenericListArray::<O>::try_new(
        Arc::clone(item),
        OffsetBuffer::from_lengths(lengths),
        take(found.values(), &kept, None)?,
        Some(nulls.clone()),
    )?))
}

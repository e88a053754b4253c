//! Rows that are picked from arrays of other rows become what they become once they are copied out of them.

use arrow::array::{BinaryArray, StringViewArray, StructArray, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{Fields, Int32Type};
use tensorquery::tensor::{BatchSlice, TextRef};

use super::*;

/// A column of each kind that has a tensor form, and of each type of leaf.
fn columns(values: &[Option<u8>]) -> Vec<(String, ArrayRef)> {
    let decimals = [
        DataType::Decimal32(9, 2),
        DataType::Decimal64(18, 2),
        DataType::Decimal128(38, 2),
        DataType::Decimal256(76, 2),
    ];
    let mut columns: Vec<(String, ArrayRef)> = leaf_types()
        .iter()
        .chain(&decimals)
        .enumerate()
        .map(|(number, data_type)| (format!("leaf{number}"), make(data_type, values)))
        .collect();
    let dense: Vec<Option<u8>> = values.iter().map(|value| Some(value.unwrap_or(0))).collect();
    columns.push(("dense".to_owned(), make(&DataType::Float32, &dense)));
    let texts: Vec<Option<String>> = values
        .iter()
        .map(|value| value.map(|value| format!("word number {}", value % 9)))
        .collect();
    let words = || texts.iter().map(Option::as_deref);
    columns.push(("text".to_owned(), Arc::new(words().collect::<StringArray>())));
    columns.push(("view".to_owned(), Arc::new(words().collect::<StringViewArray>())));
    let bytes = words().map(|word| word.map(str::as_bytes));
    columns.push(("bytes".to_owned(), Arc::new(bytes.collect::<BinaryArray>())));
    columns.push(("codes".to_owned(), Arc::new(words().collect::<DictionaryArray<Int32Type>>())));
    let pairs: Vec<Option<u8>> = dense.iter().flat_map(|value| [*value, Some(7)]).collect();
    let item = Arc::new(Field::new_list_field(DataType::Int16, true));
    let validity = NullBuffer::from_iter(values.iter().map(Option::is_some));
    let pairs = make(&DataType::Int16, &pairs);
    let fixed = FixedSizeListArray::new(item, 2, pairs, Some(validity.clone()));
    columns.push(("fixed".to_owned(), Arc::new(fixed)));
    let lists = values.iter().map(|value| value.map(|value| (0..i64::from(value % 4)).map(Some)));
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(lists);
    columns.push(("list".to_owned(), Arc::new(lists)));
    let fields = Fields::from(vec![Field::new("field", DataType::Int32, true)]);
    let inner = StructArray::new(fields, vec![make(&DataType::Int32, values)], Some(validity));
    columns.push(("struct".to_owned(), Arc::new(inner)));
    columns
}

/// Rows, numbers, texts by column, and categories by column.
type Seen<'a> = (usize, &'a [u8], Vec<Vec<TextRef<'a>>>, &'a [Vec<Value>]);

/// Everything that a consumer sees of a batch.
fn seen(batch: &TensorBatch) -> Seen<'_> {
    let texts = batch.texts().iter().map(|column| column.iter().collect()).collect();
    (batch.rows(), batch.block().as_slice(), texts, batch.categories())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Any columns picked, any rows any number of times, any slices, and copied rows beside them.
    #[test]
    fn picked_rows_give_what_copied_rows_give(
        values in (1..60_usize).prop_flat_map(column_of),
        picks in proptest::collection::vec(any::<prop::sample::Index>(), 0..120),
        picked in proptest::collection::vec(any::<bool>(), 64),
        at in any::<prop::sample::Index>(),
        stacked in any::<bool>(),
        covered in prop::bool::weighted(0.8),
    ) {
        let columns = columns(&values);
        let whole = batch(columns.iter().map(|(name, array)| (name.as_str(), array.clone())).collect());
        let rows: UInt32Array = picks.iter().map(|pick| pick.index(values.len()) as u32).collect();
        let copied = take_record_batch(&whole, &rows).unwrap();
        let picked = &picked[..columns.len()];
        let arrays = (0..columns.len()).map(|column| match picked[column] {
            true => whole.column(column).clone(),
            false => copied.column(column).clone(),
        });
        let portion = BatchSlice::picked(whole.schema(), arrays.collect(), picked.into(), rows.clone());

        let stack = ["leaf1", "leaf4", "leaf11", "dense"].map(str::to_owned).to_vec();
        let stack = if stacked { vec![("x".to_owned(), stack)] } else { Vec::new() };
        let policy = if covered { NullPolicy::Mask } else { NullPolicy::Error };
        let options = TensorOptions { stack, ..nulls(policy) };
        let converter = Converter::try_new(&whole.schema(), &options).unwrap();
        let cut = at.index(picks.len() + 1);
        let (first, rest) = portion.split_at(cut);
        let portions = [first, rest, whole.clone().into()];
        let pieces = [copied.slice(0, cut), copied.slice(cut, picks.len() - cut), whole];
        let found = converter.convert_portions(&portions);
        match converter.convert(&pieces) {
            Ok(wanted) => {
                let found = found.unwrap();
                prop_assert_eq!(seen(&found), seen(&wanted));
            }
            Err(error) => prop_assert_eq!(found.unwrap_err().to_string(), error.to_string()),
        }

        let [first, ..] = portions;
        prop_assert_eq!(first.into_batch().unwrap(), pieces[0].clone());
    }
}

//! `sum` and `avg` of integers, decimals and durations, exactly: what does not fit the type of the result is an error.
//!
//! DataFusion 53 wraps around, in silence. Here the total has twice the width of its values, so that only the result can be too
//! large, whatever the order of the rows. The sum of booleans is how many are true. Of 32 and 64 bits of decimals the result has 128. Floats are summed by the engine.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::marker::PhantomData;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, ListArray, PrimitiveArray,
    UInt64Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType,
    Field, FieldRef, Int64Type, TimeUnit, UInt64Type, i256,
};
use datafusion::common::{ScalarValue, internal_err};
use datafusion::error::Result;
use datafusion::functions_aggregate::average::Avg;
use datafusion::functions_aggregate::sum::Sum;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::utils::{AggregateOrderSensitivity, format_state_name};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, ReversedUDAF,
    SetMonotonicity, Signature, Volatility,
};

use crate::Error;

/// Both functions under their own names.
pub fn exact_totals() -> [AggregateUDF; 2] {
    let (sum, avg) = (AggregateUDF::from(Sum::new()), AggregateUDF::from(Avg::new()));
    [(sum, Rule::Sum), (avg, Rule::Mean)].map(|(inner, rule)| {
        let signature = Signature::user_defined(Volatility::Immutable);
        AggregateUDF::from(Total { inner: Arc::new(inner), rule, signature })
    })
}

/// What becomes of a total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rule {
    Sum,
    Mean,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Total {
    /// The engine's function: its signature, and all of it for floats.
    inner: Arc<AggregateUDF>,
    rule: Rule,
    signature: Signature,
}

/// Evaluates `$made` with the types of the values and of their total, or `$other` where there is no exact total.
macro_rules! with_types {
    ($of:expr, $made:ident, $other:expr) => {
        match $of {
            DataType::Int64 => $made!(Int64Type, Decimal128Type),
            DataType::UInt64 => $made!(UInt64Type, Decimal128Type),
            DataType::Decimal32(..) => $made!(Decimal32Type, Decimal128Type),
            DataType::Decimal64(..) => $made!(Decimal64Type, Decimal128Type),
            DataType::Decimal128(..) => $made!(Decimal128Type, Decimal256Type),
            DataType::Decimal256(..) => $made!(Decimal256Type, Decimal256Type),
            DataType::Duration(TimeUnit::Second) => $made!(DurationSecondType, Decimal128Type),
            DataType::Duration(TimeUnit::Millisecond) => {
                $made!(DurationMillisecondType, Decimal128Type)
            }
            DataType::Duration(TimeUnit::Microsecond) => {
                $made!(DurationMicrosecondType, Decimal128Type)
            }
            DataType::Duration(TimeUnit::Nanosecond) => {
                $made!(DurationNanosecondType, Decimal128Type)
            }
            _ => $other,
        }
    };
}

impl AggregateUDFImpl for Total {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        if self.of_engine(types).is_err() {
            return Err(self.unsupported(types).into());
        }
        let (digits, scales) = match self.rule {
            Rule::Sum => (10, 0),
            Rule::Mean => (4, 4),
        };
        match types {
            [DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale)] => {
                Ok(DataType::Decimal128((precision + digits).min(38), (scale + scales).min(38)))
            }
            _ => self.inner.inner().return_type(types),
        }
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        Ok(match (self.rule, types) {
            // The sum of a condition is how often it is true.
            (Rule::Sum, [DataType::Boolean | DataType::Null]) => vec![DataType::Int64],
            (Rule::Mean, [DataType::Null]) => vec![DataType::Float64],
            // What the engine does not take is refused by the type of the result: an error here would be wrapped.
            _ => self.of_engine(types).unwrap_or_else(|_| types.to_vec()),
        })
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        if !is_exact(&args) {
            return self.inner.accumulator(args);
        }
        self.one(args)
    }

    fn create_sliding_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn Accumulator>> {
        if !is_exact(&args) {
            return self.inner.create_sliding_accumulator(args);
        }
        self.one(args)
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        let of = args.input_fields.first().map(|field| field.data_type().clone());
        let Some(wide) = of.as_ref().and_then(total_type) else {
            return self.inner.inner().state_fields(args);
        };
        let name = |what: &str| format_state_name(args.name, what);
        Ok(match args.is_distinct {
            true => {
                let values = Field::new_list_field(DataType::Decimal256(76, 0), true);
                vec![Arc::new(Field::new_list(name("distinct values"), values, true))]
            }
            false => vec![
                Arc::new(Field::new(name("total"), wide, true)),
                Arc::new(Field::new(name("count"), DataType::UInt64, true)),
            ],
        })
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        match is_exact(&args) {
            true => !args.is_distinct,
            false => self.inner.groups_accumulator_supported(args),
        }
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        let result = self.result(&args);
        macro_rules! made {
            ($values:ty, $totals:ty) => {
                Ok(Box::new(Groups::<$values, $totals>::new(result)))
            };
        }
        with_types!(
            args.expr_fields[0].data_type(),
            made,
            self.inner.create_groups_accumulator(args)
        )
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn set_monotonicity(&self, of: &DataType) -> SetMonotonicity {
        self.inner.inner().set_monotonicity(of)
    }
}

impl Total {
    /// The types to which the engine casts arguments of these.
    fn of_engine(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let field = |of: &DataType| Arc::new(Field::new("value", of.clone(), true));
        let fields: Vec<FieldRef> = types.iter().map(field).collect();
        let cast = fields_with_udf(&fields, &*self.inner)?;
        Ok(cast.iter().map(|field| field.data_type().clone()).collect())
    }

    fn unsupported(&self, types: &[DataType]) -> Error {
        let name = self.name();
        let [of] = types else {
            return Error::query(format!(
                "{name}() takes one value, and {} were given",
                types.len()
            ));
        };
        Error::query(match of {
            DataType::Boolean => format!(
                "{name}() takes numbers, and its argument is of the type BOOLEAN; for the share of the rows in which it is true \
                 write {name}(CAST(x AS INT))"
            ),
            _ => format!(
                "{name}() takes numbers and durations, and its argument is of the type {of}; write {name}(CAST(x AS DOUBLE)), or \
                 a number of it, for example extract(epoch FROM x)"
            ),
        })
    }

    fn one(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        let result = self.result(&args);
        let of = args.expr_fields[0].data_type();
        if args.is_distinct {
            return Ok(Box::new(Distinct { result, counts: HashMap::new() }));
        }
        macro_rules! made {
            ($values:ty, $totals:ty) => {
                Ok(Box::new(One::<$values, $totals>::new(result)))
            };
        }
        with_types!(of, made, internal_err!("{} of {of} has no exact total", self.name()))
    }

    fn result(&self, args: &AccumulatorArgs<'_>) -> Outcome {
        Outcome {
            rule: self.rule,
            name: args.name.to_owned(),
            of: args.expr_fields[0].data_type().clone(),
            data_type: args.return_field.data_type().clone(),
        }
    }
}

fn is_exact(args: &AccumulatorArgs<'_>) -> bool {
    args.expr_fields.first().is_some_and(|field| total_type(field.data_type()).is_some())
}

/// The type in which totals are kept; None where the engine keeps them.
fn total_type(of: &DataType) -> Option<DataType> {
    macro_rules! made {
        ($values:ty, $totals:ty) => {
            Some(wide_type::<$totals>())
        };
    }
    with_types!(of, made, None)
}

fn wide_type<W: ArrowPrimitiveType>() -> DataType {
    match W::DATA_TYPE {
        DataType::Decimal128(..) => DataType::Decimal128(38, 0),
        _ => DataType::Decimal256(76, 0),
    }
}

/// A number that totals are kept in.
trait Wide: Copy + Default + Send + Sync + Debug + 'static {
    fn plus(self, other: Self) -> Option<Self>;
    fn minus(self, other: Self) -> Option<Self>;
    fn widest(self) -> i256;
}

impl Wide for i128 {
    fn plus(self, other: Self) -> Option<Self> {
        self.checked_add(other)
    }

    fn minus(self, other: Self) -> Option<Self> {
        self.checked_sub(other)
    }

    fn widest(self) -> i256 {
        i256::from_i128(self)
    }
}

impl Wide for i256 {
    fn plus(self, other: Self) -> Option<Self> {
        self.checked_add(other)
    }

    fn minus(self, other: Self) -> Option<Self> {
        self.checked_sub(other)
    }

    fn widest(self) -> i256 {
        self
    }
}

/// A value as a part of a total.
trait Widen<W> {
    fn widen(self) -> W;
}

impl<T: Into<i128>> Widen<i128> for T {
    fn widen(self) -> i128 {
        self.into()
    }
}

impl Widen<i256> for i128 {
    fn widen(self) -> i256 {
        i256::from_i128(self)
    }
}

impl Widen<i256> for i256 {
    fn widen(self) -> i256 {
        self
    }
}

/// How a total becomes a result.
#[derive(Debug)]
struct Outcome {
    rule: Rule,
    /// The call, for errors.
    name: String,
    /// The type of the values.
    of: DataType,
    /// The type of the result.
    data_type: DataType,
}

impl Outcome {
    /// The result of a total of values; None of no value.
    fn number(&self, total: i256, count: u64) -> Result<Option<i256>> {
        if count == 0 {
            return Ok(None);
        }
        let number = match self.rule {
            Rule::Sum => Some(total),
            Rule::Mean => self.mean(total, count),
        };
        match number.filter(|number| self.fits(*number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.overflow()),
        }
    }

    /// The mean, rounded half away from zero to the digits of the result.
    fn mean(&self, total: i256, count: u64) -> Option<i256> {
        let more = u32::try_from(scale(&self.data_type) - scale(&self.of)).unwrap_or(0);
        let (shift, count) =
            (i256::from_i128(10).checked_pow(more)?, i256::from_i128(count.into()));
        let whole = total.checked_div(count)?.checked_mul(shift)?;
        let rest = total.checked_rem(count)?.checked_mul(shift)?;
        let mean = whole.checked_add(rest.checked_div(count)?)?;
        let left = rest.checked_rem(count)?;
        match left.checked_abs()?.checked_mul(i256::from_i128(2))? >= count {
            true if left < i256::ZERO => mean.checked_sub(i256::ONE),
            true => mean.checked_add(i256::ONE),
            false => Some(mean),
        }
    }

    fn fits(&self, number: i256) -> bool {
        let digits = |precision: &u8| {
            let bound = i256::from_i128(10).checked_pow(u32::from(*precision));
            bound.is_none_or(|bound| number < bound && number > bound.wrapping_neg())
        };
        match &self.data_type {
            DataType::Decimal128(precision, _) | DataType::Decimal256(precision, _) => {
                digits(precision)
            }
            DataType::UInt64 => {
                number.to_i128().is_some_and(|number| u64::try_from(number).is_ok())
            }
            _ => number.to_i128().is_some_and(|number| i64::try_from(number).is_ok()),
        }
    }

    fn overflow(&self) -> datafusion::error::DataFusionError {
        let wider = match &self.of {
            DataType::Decimal128(_, scale)
            | DataType::Decimal32(_, scale)
            | DataType::Decimal64(_, scale) => {
                format!("DECIMAL(76, {scale})) or CAST(x AS DOUBLE")
            }
            DataType::Decimal256(..) => "DOUBLE".to_owned(),
            _ => "DECIMAL(38, 0)".to_owned(),
        };
        Error::query(format!(
            "{} is beyond the range of its type {}; cast its argument to a wider type first: CAST(x AS {wider})",
            self.name, self.data_type
        ))
        .into()
    }

    /// Results as an array of their type.
    fn array(&self, numbers: &[Option<i256>]) -> Result<ArrayRef> {
        fn packed<T: ArrowPrimitiveType>(
            numbers: &[Option<i256>],
            of: &DataType,
            pack: impl Fn(i256) -> T::Native,
        ) -> ArrayRef {
            let values = numbers.iter().map(|number| number.map(&pack));
            Arc::new(PrimitiveArray::<T>::from_iter(values).with_data_type(of.clone()))
        }
        // All of them fit.
        let short = |number: i256| number.as_i128() as i64;
        let of = &self.data_type;
        Ok(match of {
            DataType::Int64 => packed::<Int64Type>(numbers, of, short),
            DataType::UInt64 => packed::<UInt64Type>(numbers, of, |number| number.as_i128() as u64),
            DataType::Decimal128(..) => packed::<Decimal128Type>(numbers, of, i256::as_i128),
            DataType::Decimal256(..) => packed::<Decimal256Type>(numbers, of, |number| number),
            DataType::Duration(TimeUnit::Second) => {
                packed::<DurationSecondType>(numbers, of, short)
            }
            DataType::Duration(TimeUnit::Millisecond) => {
                packed::<DurationMillisecondType>(numbers, of, short)
            }
            DataType::Duration(TimeUnit::Microsecond) => {
                packed::<DurationMicrosecondType>(numbers, of, short)
            }
            DataType::Duration(TimeUnit::Nanosecond) => {
                packed::<DurationNanosecondType>(numbers, of, short)
            }
            other => return internal_err!("{} has results of type {other}", self.name),
        })
    }

    fn scalar(&self, total: i256, count: u64) -> Result<ScalarValue> {
        let number = self.number(total, count)?;
        ScalarValue::try_from_array(&self.array(&[number])?, 0)
    }
}

/// Digits after the point.
fn scale(of: &DataType) -> i32 {
    match of {
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale) => i32::from(*scale),
        _ => 0,
    }
}

/// The total of all rows, or of those of a frame.
struct One<T, W: ArrowPrimitiveType> {
    result: Outcome,
    total: W::Native,
    count: u64,
    of: PhantomData<T>,
}

impl<T, W: ArrowPrimitiveType> One<T, W> {
    fn new(result: Outcome) -> Self {
        Self { result, total: W::default_value(), count: 0, of: PhantomData }
    }
}

impl<T, W: ArrowPrimitiveType> Debug for One<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("One").field("result", &self.result).field("count", &self.count).finish()
    }
}

impl<T, W> Accumulator for One<T, W>
where
    T: ArrowPrimitiveType + Send + Sync,
    W: ArrowPrimitiveType + Send + Sync,
    W::Native: Wide,
    T::Native: Widen<W::Native>,
{
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<T>().iter().flatten() {
            let total = self.total.plus(value.widen());
            self.total = total.ok_or_else(|| self.result.overflow())?;
            self.count += 1;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<T>().iter().flatten() {
            let total = self.total.minus(value.widen());
            self.total = total.ok_or_else(|| self.result.overflow())?;
            let Some(count) = self.count.checked_sub(1) else {
                return internal_err!("{}: more rows leave a frame than came", self.result.name);
            };
            self.count = count;
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let (totals, counts) =
            (states[0].as_primitive::<W>(), states[1].as_primitive::<UInt64Type>());
        for (total, count) in totals.iter().zip(counts).filter_map(|(a, b)| Some((a?, b?))) {
            let total = self.total.plus(total);
            self.total = total.ok_or_else(|| self.result.overflow())?;
            self.count += count;
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.result.scalar(self.total.widest(), self.count)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![
            ScalarValue::new_primitive::<W>(Some(self.total), &wide_type::<W>())?,
            ScalarValue::UInt64(Some(self.count)),
        ])
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.result.name.capacity()
    }
}

/// The totals of groups.
struct Groups<T, W: ArrowPrimitiveType> {
    result: Outcome,
    totals: Vec<W::Native>,
    counts: Vec<u64>,
    of: PhantomData<fn() -> T>,
}

impl<T, W: ArrowPrimitiveType> Groups<T, W>
where
    W::Native: Wide,
{
    fn new(result: Outcome) -> Self {
        Self { result, totals: Vec::new(), counts: Vec::new(), of: PhantomData }
    }

    fn grow(&mut self, groups: usize) {
        self.totals.resize(groups, W::default_value());
        self.counts.resize(groups, 0);
    }

    fn add(&mut self, group: usize, value: W::Native, count: u64) -> Result<()> {
        match self.totals[group].plus(value) {
            Some(total) => self.totals[group] = total,
            None => return Err(self.result.overflow()),
        }
        self.counts[group] += count;
        Ok(())
    }
}

/// Whether a filter of an aggregate keeps a row.
fn keeps(filter: Option<&BooleanArray>, row: usize) -> bool {
    filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row))
}

impl<T, W> GroupsAccumulator for Groups<T, W>
where
    T: ArrowPrimitiveType,
    W: ArrowPrimitiveType + Send,
    W::Native: Wide,
    T::Native: Widen<W::Native>,
{
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.grow(total_num_groups);
        let values = values[0].as_primitive::<T>();
        for (row, group) in group_indices.iter().enumerate() {
            if values.is_valid(row) && keeps(opt_filter, row) {
                self.add(*group, values.value(row).widen(), 1)?;
            }
        }
        Ok(())
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.grow(total_num_groups);
        let (totals, counts) =
            (values[0].as_primitive::<W>(), values[1].as_primitive::<UInt64Type>());
        for (row, group) in group_indices.iter().enumerate() {
            if totals.is_valid(row) && keeps(opt_filter, row) {
                self.add(*group, totals.value(row), counts.value(row))?;
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let totals = emit_to.take_needed(&mut self.totals);
        let counts = emit_to.take_needed(&mut self.counts);
        let numbers = totals
            .into_iter()
            .zip(counts)
            .map(|(total, count)| self.result.number(total.widest(), count))
            .collect::<Result<Vec<_>>>()?;
        self.result.array(&numbers)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let totals = emit_to.take_needed(&mut self.totals);
        let counts = emit_to.take_needed(&mut self.counts);
        let totals = PrimitiveArray::<W>::new(totals.into(), None);
        Ok(vec![
            Arc::new(totals.with_data_type(wide_type::<W>())),
            Arc::new(UInt64Array::from(counts)),
        ])
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let values = values[0].as_primitive::<T>();
        let kept = |row: usize| values.is_valid(row) && keeps(opt_filter, row);
        let nulls = NullBuffer::from_iter((0..values.len()).map(kept));
        let totals =
            values.values().iter().map(|value| (*value).widen()).collect::<Vec<W::Native>>();
        let totals = PrimitiveArray::<W>::new(totals.into(), Some(nulls));
        Ok(vec![
            Arc::new(totals.with_data_type(wide_type::<W>())),
            Arc::new(UInt64Array::from(vec![1; values.len()])),
        ])
    }

    fn supports_convert_to_state(&self) -> bool {
        true
    }

    fn size(&self) -> usize {
        self.totals.capacity() * size_of::<W::Native>() + self.counts.capacity() * 8
    }
}

/// The total of different values.
#[derive(Debug)]
struct Distinct {
    result: Outcome,
    /// How often each value is there.
    counts: HashMap<i256, u64>,
}

impl Distinct {
    fn values(&self, array: &ArrayRef) -> Result<Vec<i256>> {
        macro_rules! made {
            ($values:ty, $totals:ty) => {{
                let values = array.as_primitive::<$values>().iter().flatten();
                let widen = |value| Widen::<<$totals as ArrowPrimitiveType>::Native>::widen(value);
                Ok(values.map(|value| widen(value).widest()).collect())
            }};
        }
        let of = array.data_type();
        with_types!(of, made, internal_err!("distinct values of {of} have no exact total"))
    }
}

impl Accumulator for Distinct {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in self.values(&values[0])? {
            *self.counts.entry(value).or_default() += 1;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in self.values(&values[0])? {
            if let Some(count) = self.counts.get_mut(&value) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&value);
                }
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for values in states[0].as_list::<i32>().iter().flatten() {
            for value in values.as_primitive::<Decimal256Type>().iter().flatten() {
                *self.counts.entry(value).or_default() += 1;
            }
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let total =
            self.counts.keys().try_fold(i256::ZERO, |total, value| total.checked_add(*value));
        let total = total.ok_or_else(|| self.result.overflow())?;
        self.result.scalar(total, self.counts.len() as u64)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values =
            PrimitiveArray::<Decimal256Type>::from_iter_values(self.counts.keys().copied())
                .with_data_type(DataType::Decimal256(76, 0));
        let field = Arc::new(Field::new_list_field(DataType::Decimal256(76, 0), true));
        let offsets = OffsetBuffer::from_lengths([values.len()]);
        let list = ListArray::new(field, offsets, Arc::new(values), None);
        Ok(vec![ScalarValue::List(Arc::new(list))])
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.counts.capacity() * size_of::<(i256, u64)>()
    }
}

//! Property: a container that is left out has no row that matches, and one that is counted as a
//! whole has no other. This holds for absent, inexact or odd statistics. The engine decides about
//! the rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int32Array, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::common::config::ConfigOptions;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CastExpr, Column, IsNotNullExpr, IsNullExpr, LikeExpr, NotExpr, TryCastExpr,
    in_list, lit,
};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::scalar::ScalarValue;
use proptest::prelude::*;

use super::bounds::{ColumnBounds, above_cut};
use super::judge::{Bounds, judge};
use crate::floats::plain_float;

type Expr = Arc<dyn PhysicalExpr>;

const INT: usize = 0;
const FLOAT: usize = 1;
const TEXT: usize = 2;
const TRUTH: usize = 3;

fn schema() -> SchemaRef {
    let field = |name, data_type| Field::new(name, data_type, true);
    Arc::new(Schema::new(vec![
        field("i", DataType::Int32),
        field("f", DataType::Float64),
        field("s", DataType::Utf8),
        field("b", DataType::Boolean),
    ]))
}

/// A row: an integer, a float, a text and a truth.
type Row = (Option<i32>, Option<f64>, Option<String>, Option<bool>);

/// The damage done to a column's statistics in a container.
#[derive(Clone, Debug)]
struct Damage {
    without_nulls: bool,
    without_lower: bool,
    without_upper: bool,
    /// By how much bounds are too wide, or to how many bytes texts are cut.
    inexact: Option<u8>,
    /// Whether NaN is counted.
    counts_nan: bool,
    /// Whether a bound is NaN, as some writers have it.
    is_nan: bool,
    /// Zeros of bounds get the other sign.
    flips_zeros: bool,
    /// Minimum and maximum change places.
    is_swapped: bool,
}

#[derive(Clone, Debug)]
struct Container {
    rows: Vec<Row>,
    damage: Vec<Damage>,
}

/// Containers whose bounds are made of their rows, and then damaged.
#[derive(Debug)]
struct Damaged {
    containers: Vec<Container>,
}

fn array_of<T: Clone, A: FromIterator<Option<T>> + Array + 'static>(
    values: impl IntoIterator<Item = Option<T>>,
) -> ArrayRef {
    Arc::new(values.into_iter().collect::<A>())
}

impl Damaged {
    /// Bounds, from the values of each container: least and greatest, and one of them made inexact.
    fn bounds<T: Clone, A: FromIterator<Option<T>> + Array + 'static>(
        &self,
        column: usize,
        values: impl Fn(&Row) -> Option<T>,
        extremes: impl Fn(&[T]) -> Option<(T, T)>,
        widened: impl Fn(&T, bool, u8) -> Option<T>,
        adjusted: impl Fn(T, &Damage) -> T,
    ) -> ColumnBounds {
        let (mut lower, mut upper) = (Vec::new(), Vec::new());
        let (mut nulls, mut rows) = (Vec::new(), Vec::new());
        for container in &self.containers {
            let damage = &container.damage[column];
            let there: Vec<T> = container.rows.iter().filter_map(&values).collect();
            rows.push(container.rows.len() as u64);
            let missing = (container.rows.len() - there.len()) as u64;
            nulls.push((!damage.without_nulls).then_some(missing));
            let found = extremes(&there);
            let bound = |value: T, is_upper: bool| match damage.inexact {
                Some(by) => widened(&value, is_upper, by),
                None => Some(value),
            };
            let (least, greatest) = match found {
                Some((least, greatest)) => (bound(least, false), bound(greatest, true)),
                None => (None, None),
            };
            let least =
                least.map(|value| adjusted(value, damage)).filter(|_| !damage.without_lower);
            let greatest =
                greatest.map(|value| adjusted(value, damage)).filter(|_| !damage.without_upper);
            let (least, greatest) = match damage.is_swapped && least.is_some() && greatest.is_some()
            {
                true => (greatest, least),
                false => (least, greatest),
            };
            lower.push(least);
            upper.push(greatest);
        }
        let (lower, upper) = (array_of::<T, A>(lower), array_of::<T, A>(upper));
        ColumnBounds::unknown(schema().field(column).data_type(), self.containers.len())
            .with_nulls(&nulls, &rows)
            .with_extremes(&lower, &upper)
    }
}

fn ordered<T: PartialOrd + Clone>(values: &[T]) -> Option<(T, T)> {
    let mut found: Option<(T, T)> = None;
    for value in values {
        let (least, greatest) = found.get_or_insert((value.clone(), value.clone()));
        if *value < *least {
            *least = value.clone();
        }
        if *value > *greatest {
            *greatest = value.clone();
        }
    }
    found
}

fn wider(value: &str, is_upper: bool, bytes: u8) -> Option<String> {
    let mut end = usize::from(bytes).min(value.len());
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    let cut = &value[..end];
    // What a writer cuts off above, it has to raise.
    Some(if is_upper && end < value.len() { format!("{cut}\u{10ffff}") } else { cut.to_owned() })
}

impl Bounds for Damaged {
    fn containers(&self) -> usize {
        self.containers.len()
    }

    fn column(&self, column: &Column) -> Option<ColumnBounds> {
        Some(match column.index() {
            INT => self.bounds::<i32, Int32Array>(
                INT,
                |row| row.0,
                ordered,
                |value, is_upper, by| match is_upper {
                    true => value.checked_add(by.into()),
                    false => value.checked_sub(by.into()),
                },
                |value, _| value,
            ),
            FLOAT => {
                let bounds = self.bounds::<f64, Float64Array>(
                    FLOAT,
                    |row| row.1,
                    |values| {
                        let numbers: Vec<f64> =
                            values.iter().copied().filter(|value| !value.is_nan()).collect();
                        ordered(&numbers)
                    },
                    |value, is_upper, by| {
                        Some(if is_upper { value + f64::from(by) } else { value - f64::from(by) })
                    },
                    |value, damage| match (damage.is_nan, damage.flips_zeros) {
                        (true, _) => f64::NAN,
                        (_, true) if value == 0.0 => -value,
                        _ => value,
                    },
                );
                let nans = self.containers.iter().map(|container| {
                    let nans = container.rows.iter().filter(|row| row.1.is_some_and(f64::is_nan));
                    container.damage[FLOAT].counts_nan.then(|| nans.count() as u64)
                });
                bounds.with_nans(&nans.collect::<Vec<_>>())
            }
            TEXT => self.bounds::<String, StringArray>(
                TEXT,
                |row| row.2.clone(),
                ordered,
                |value, is_upper, by| wider(value, is_upper, by),
                |value, _| value,
            ),
            TRUTH => self.bounds::<bool, BooleanArray>(
                TRUTH,
                |row| row.3,
                ordered,
                |_, is_upper, _| Some(is_upper),
                |value, _| value,
            ),
            _ => return None,
        })
    }
}

fn batch(rows: &[Row]) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(|row| row.0).collect::<Int32Array>()),
        Arc::new(rows.iter().map(|row| row.1).collect::<Float64Array>()),
        Arc::new(rows.iter().map(|row| row.2.clone()).collect::<StringArray>()),
        Arc::new(rows.iter().map(|row| row.3).collect::<BooleanArray>()),
    ];
    RecordBatch::try_new(schema(), columns).unwrap()
}

fn column(place: usize) -> Expr {
    Arc::new(Column::new(schema().field(place).name(), place))
}

fn plain(value: Expr) -> Expr {
    let config = Arc::new(ConfigOptions::default());
    let function = Arc::clone(plain_float());
    Arc::new(ScalarFunctionExpr::try_new(function, vec![value], &schema(), config).unwrap())
}

const SIGNED_NAN: f64 = -f64::NAN;

fn number() -> impl Strategy<Value = f64> {
    prop::sample::select(vec![
        -0.0,
        0.0,
        1.0,
        2.0,
        -3.5,
        7.0,
        f64::NAN,
        SIGNED_NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ])
}

fn text() -> impl Strategy<Value = String> {
    let words = ["", "a", "ab", "abc", "b", "zebra", "ü", "a\u{10ffff}", "0123456789abcdefgh"];
    prop::sample::select(words.map(str::to_owned).to_vec())
}

fn integer() -> impl Strategy<Value = i32> {
    prop_oneof![4 => -4..8, 1 => Just(i32::MAX), 1 => Just(i32::MIN)]
}

fn row() -> impl Strategy<Value = Row> {
    use prop::option::weighted;
    (
        weighted(0.8, integer()),
        weighted(0.8, number()),
        weighted(0.8, text()),
        weighted(0.8, any::<bool>()),
    )
}

fn damage() -> impl Strategy<Value = Damage> {
    let seldom = || prop::bool::weighted(0.2);
    (
        (seldom(), seldom(), seldom(), prop::option::weighted(0.3, 0..4_u8)),
        (any::<bool>(), seldom(), any::<bool>(), prop::bool::weighted(0.1)),
    )
        .prop_map(|(some, others)| Damage {
            without_nulls: some.0,
            without_lower: some.1,
            without_upper: some.2,
            inexact: some.3,
            counts_nan: others.0,
            is_nan: others.1,
            flips_zeros: others.2,
            is_swapped: others.3,
        })
}

fn container() -> impl Strategy<Value = Container> {
    // Few values, so that some containers have one only.
    let same = (row(), 1..4_usize).prop_map(|(row, count)| vec![row; count]);
    let rows = prop_oneof![2 => prop::collection::vec(row(), 1..5), 1 => same];
    (rows, prop::collection::vec(damage(), 4)).prop_map(|(rows, damage)| Container { rows, damage })
}

fn comparison() -> impl Strategy<Value = Operator> {
    prop::sample::select(vec![
        Operator::Lt,
        Operator::LtEq,
        Operator::Gt,
        Operator::GtEq,
        Operator::Eq,
        Operator::NotEq,
        Operator::IsDistinctFrom,
        Operator::IsNotDistinctFrom,
    ])
}

/// A value of a column, and one of its type.
fn operands() -> impl Strategy<Value = (Expr, Expr)> {
    let constant = |value: Option<ScalarValue>, data_type: DataType| {
        lit(value.unwrap_or_else(|| ScalarValue::try_from(&data_type).unwrap()))
    };
    let some = |probability| prop::option::weighted(probability, Just(()));
    let ints = (integer(), some(0.95)).prop_map(move |(value, is)| {
        (column(INT), constant(is.map(|()| ScalarValue::from(value)), DataType::Int32))
    });
    let casts = (integer(), any::<bool>()).prop_map(move |(value, tries)| {
        let cast: Expr = match tries {
            true => Arc::new(TryCastExpr::new(column(INT), DataType::Int8)),
            false => Arc::new(CastExpr::new(column(INT), DataType::Int64, None)),
        };
        let constant = match tries {
            true => ScalarValue::from(value as i8),
            false => ScalarValue::from(i64::from(value)),
        };
        (cast, lit(constant))
    });
    let floats = (number(), any::<bool>(), some(0.95)).prop_map(move |(value, is_plain, is)| {
        let (left, value) = match is_plain {
            true if value.is_nan() => (plain(column(FLOAT)), f64::NAN),
            true => (plain(column(FLOAT)), value + 0.0),
            false => (column(FLOAT), value),
        };
        (left, constant(is.map(|()| ScalarValue::from(value)), DataType::Float64))
    });
    let halves = number().prop_map(|value| {
        let cast = Arc::new(CastExpr::new(plain(column(FLOAT)), DataType::Float32, None)) as Expr;
        let value = if value.is_nan() { f32::NAN } else { value as f32 + 0.0 };
        (cast, lit(value))
    });
    let texts = text().prop_map(|value| (column(TEXT), lit(value)));
    let truths = any::<bool>().prop_map(|value| (column(TRUTH), lit(value)));
    let columns = Just((
        plain(column(FLOAT)),
        plain(Arc::new(CastExpr::new(column(INT), DataType::Float64, None)) as Expr),
    ));
    prop_oneof![3 => ints, 1 => casts, 3 => floats, 1 => halves, 2 => texts, 1 => truths, 1 => columns]
}

fn predicate() -> impl Strategy<Value = Expr> {
    let compared =
        (operands(), comparison(), any::<bool>()).prop_map(|((left, right), op, swaps)| {
            let (left, right) = if swaps { (right, left) } else { (left, right) };
            Arc::new(BinaryExpr::new(left, op, right)) as Expr
        });
    let listed = (prop::collection::vec(integer(), 1..4), any::<bool>(), any::<bool>()).prop_map(
        |(items, has_null, negated)| {
            let mut list: Vec<Expr> = items.into_iter().map(lit).collect();
            if has_null {
                list.push(lit(ScalarValue::Int32(None)));
            }
            in_list(column(INT), list, &negated, &schema()).unwrap()
        },
    );
    let long =
        (prop::collection::vec(0..500_i32, 300), any::<bool>()).prop_map(|(items, negated)| {
            in_list(column(INT), items.into_iter().map(lit).collect(), &negated, &schema()).unwrap()
        });
    let patterns = ["a%", "ab%", "a_", "abc", "%b", "", "\\%", "0123456789abcdefgh%"];
    let like =
        (prop::sample::select(patterns.to_vec()), any::<bool>()).prop_map(|(pattern, negated)| {
            Arc::new(LikeExpr::new(negated, false, column(TEXT), lit(pattern))) as Expr
        });
    let nulls = (0..4_usize, any::<bool>()).prop_map(|(place, is_null)| match is_null {
        true => Arc::new(IsNullExpr::new(column(place))) as Expr,
        false => Arc::new(IsNotNullExpr::new(column(place))) as Expr,
    });
    let leaf = prop_oneof![
        8 => compared,
        2 => listed,
        1 => long,
        2 => like,
        3 => nulls,
        1 => Just(column(TRUTH)),
        1 => prop::option::of(any::<bool>()).prop_map(|value| lit(ScalarValue::Boolean(value))),
    ];
    leaf.prop_recursive(3, 12, 2, |inner| {
        let two = (inner.clone(), inner.clone(), any::<bool>());
        let joined = two.prop_map(|(left, right, is_and)| {
            let op = if is_and { Operator::And } else { Operator::Or };
            Arc::new(BinaryExpr::new(left, op, right)) as Expr
        });
        let tested = (inner.clone(), any::<bool>()).prop_map(|(inner, value)| {
            Arc::new(BinaryExpr::new(inner, Operator::IsNotDistinctFrom, lit(value))) as Expr
        });
        let not = inner.clone().prop_map(|inner| Arc::new(NotExpr::new(inner)) as Expr);
        let null = inner.prop_map(|inner| Arc::new(IsNullExpr::new(inner)) as Expr);
        prop_oneof![4 => joined, 1 => tested, 2 => not, 1 => null]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn what_is_proven_is_true_of_every_row(
        containers in prop::collection::vec(container(), 1..4),
        predicate in predicate(),
    ) {
        let bounds = Damaged { containers: containers.clone() };
        let verdict = judge(&predicate, &bounds);
        for (number, container) in containers.iter().enumerate() {
            let batch = batch(&container.rows);
            let answers = predicate.evaluate(&batch).unwrap().into_array(batch.num_rows()).unwrap();
            let matching = answers.as_boolean().true_count();
            if verdict.none.value(number) {
                prop_assert_eq!(matching, 0, "left out: {} of {:?}", predicate, container);
            }
            if verdict.all.value(number) {
                let rows = container.rows.len();
                prop_assert_eq!(matching, rows, "whole: {} of {:?}", predicate, container);
            }
        }
    }
}

/// Known bounds must be used: otherwise the property would hold for a judge that proves nothing.
#[test]
fn known_bounds_prove() {
    let undamaged = Damage {
        without_nulls: false,
        without_lower: false,
        without_upper: false,
        inexact: None,
        counts_nan: true,
        is_nan: false,
        flips_zeros: false,
        is_swapped: false,
    };
    let container = |numbers: &[i32], null: bool| {
        let row = |n: &i32| (Some(*n), Some(f64::from(*n)), Some(format!("t{n}")), Some(*n > 2));
        let mut rows: Vec<Row> = numbers.iter().map(row).collect();
        if null {
            rows.push((None, None, None, None));
        }
        Container { rows, damage: vec![undamaged.clone(); 4] }
    };
    let containers = vec![
        container(&[1, 2], false),
        container(&[3, 5], true),
        container(&[6, 7], false),
        container(&[], true),
    ];
    let compare = |left: Expr, op, right: Expr| Arc::new(BinaryExpr::new(left, op, right)) as Expr;
    let wide = Arc::new(CastExpr::new(column(INT), DataType::Int64, None)) as Expr;
    let like = |pattern| Arc::new(LikeExpr::new(false, false, column(TEXT), lit(pattern))) as Expr;
    let list = |items: Vec<i32>| {
        in_list(column(INT), items.into_iter().map(lit).collect(), &false, &schema()).unwrap()
    };
    // By predicate, what is left out and what is whole.
    let cases: Vec<(Expr, &str, &str)> = vec![
        (compare(column(INT), Operator::Gt, lit(5)), "xx.x", "..x."),
        (compare(column(INT), Operator::LtEq, lit(2)), ".xxx", "x..."),
        (compare(lit(4), Operator::Gt, column(INT)), "..xx", "x..."),
        (compare(column(INT), Operator::NotEq, lit(4)), "...x", "x.x."),
        (compare(wide, Operator::GtEq, lit(6_i64)), "xx.x", "..x."),
        (compare(plain(column(FLOAT)), Operator::Lt, lit(3.0)), ".xxx", "x..."),
        (compare(plain(column(FLOAT)), Operator::Gt, lit(5.0)), "xx.x", "..x."),
        (compare(column(FLOAT), Operator::Eq, lit(7.0)), "xx.x", "...."),
        (compare(column(TEXT), Operator::Eq, lit("t3")), "x.xx", "...."),
        (list(vec![3, 4, 9]), "x.xx", "...."),
        (list((100..500).collect()), "xxxx", "...."),
        (like("t%"), "...x", "x.x."),
        (like("u%"), "xxxx", "...."),
        (column(TRUTH), "x..x", "..x."),
        (Arc::new(NotExpr::new(column(TRUTH))), ".xxx", "x..."),
        (Arc::new(IsNullExpr::new(column(INT))), "x.x.", "...x"),
        (Arc::new(IsNotNullExpr::new(column(INT))), "...x", "x.x."),
        (compare(column(INT), Operator::IsDistinctFrom, lit(4)), "....", "x.xx"),
    ];
    for (predicate, none, all) in cases {
        let verdict = judge(&predicate, &Damaged { containers: containers.clone() });
        let drawn = |bits: &arrow::buffer::BooleanBuffer| -> String {
            bits.iter().map(|bit| if bit { 'x' } else { '.' }).collect()
        };
        assert_eq!(
            (drawn(&verdict.none), drawn(&verdict.all)),
            (none.into(), all.into()),
            "{predicate}"
        );
    }
}

#[test]
fn a_text_that_may_have_been_cut_bounds_all_that_begin_with_it() {
    let upper = |text: &str, cut: bool| {
        let array = Arc::new(StringArray::from(vec![text])) as ArrayRef;
        let raised = above_cut(&array, &vec![cut].into_iter().collect());
        let raised = raised.as_string::<i32>();
        raised.is_valid(0).then(|| raised.value(0).to_owned())
    };
    assert_eq!(upper("0123456789abcdef", true).as_deref(), Some("0123456789abcdeg"));
    assert_eq!(upper("0123456789abcdef", false).as_deref(), Some("0123456789abcdef"));
    assert_eq!(upper("short", true).as_deref(), Some("short"));
    assert_eq!(upper(&"\u{10ffff}".repeat(4), true), None);
    assert_eq!(upper("0123456789abcd\u{d7ff}", true).as_deref(), Some("0123456789abcd\u{e000}"));
}

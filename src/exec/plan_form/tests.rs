//! Two expressions or plans share a form only where they are the same.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr,
    Literal, NegativeExpr, NotExpr, TryCastExpr,
};
use datafusion::prelude::{SessionConfig, SessionContext};

use super::{write_expression, write_plan};
use crate::exec::MemoryTable;
use crate::fingerprint::Form;

type Expr = Arc<dyn PhysicalExpr>;

fn expression(expr: &Expr) -> String {
    let mut form = Form::new("expression");
    write_expression(&mut form, "root", expr).unwrap();
    form.name()
}

fn plan_name(plan: &Arc<dyn ExecutionPlan>) -> String {
    let mut form = Form::new("plan");
    write_plan(&mut form, "root", plan, &str::to_owned).unwrap();
    form.name()
}

fn schema() -> Schema {
    Schema::new(vec![
        Field::new("i", DataType::Int64, true),
        Field::new("f", DataType::Float64, true),
        Field::new("s", DataType::Utf8, true),
        Field::new("b", DataType::Boolean, true),
    ])
}

/// Expressions that all differ, though many print the same text.
fn expressions() -> Vec<Expr> {
    let column = |name: &str, index: usize| -> Expr { Arc::new(Column::new(name, index)) };
    let lit = |value: ScalarValue| -> Expr { Arc::new(Literal::new(value)) };
    let cast = |to: DataType| -> Expr { Arc::new(CastExpr::new(column("i", 0), to, None)) };
    let binary = |left, op, right| -> Expr { Arc::new(BinaryExpr::new(left, op, right)) };
    let list = |negated: bool, items: Vec<Expr>| -> Expr {
        Arc::new(InListExpr::try_new(column("i", 0), items, negated, &schema()).unwrap())
    };
    let like = |negated, ignores| -> Expr {
        let pattern = lit(ScalarValue::from("a%"));
        Arc::new(LikeExpr::new(negated, ignores, column("s", 2), pattern))
    };
    let case = |operand: Option<Expr>, otherwise: Option<Expr>| -> Expr {
        let when = match operand {
            Some(_) => lit(ScalarValue::from(1_i64)),
            None => column("b", 3),
        };
        let when = vec![(when, lit(ScalarValue::from(2_i64)))];
        Arc::new(CaseExpr::try_new(operand, when, otherwise).unwrap())
    };
    let one = || lit(ScalarValue::from(1_i64));
    let mut found = vec![
        column("i", 0),
        column("i", 1),
        column("f", 0),
        one(),
        lit(ScalarValue::from(1_i32)),
        lit(ScalarValue::from("1")),
        lit(ScalarValue::LargeUtf8(Some("1".into()))),
        lit(ScalarValue::from(1.0_f64)),
        lit(ScalarValue::from(0.0_f64)),
        lit(ScalarValue::from(-0.0_f64)),
        lit(ScalarValue::from(f64::NAN)),
        lit(ScalarValue::from(f64::from_bits(f64::NAN.to_bits() + 1))),
        lit(ScalarValue::Float64(None)),
        lit(ScalarValue::Int64(None)),
        lit(ScalarValue::Null),
        lit(ScalarValue::Date32(Some(1))),
        lit(ScalarValue::Decimal128(Some(1), 9, 0)),
        lit(ScalarValue::Decimal128(Some(10), 9, 1)),
        lit(ScalarValue::from(true)),
        cast(DataType::Int32),
        cast(DataType::Float64),
        Arc::new(TryCastExpr::new(column("i", 0), DataType::Int32)),
        Arc::new(NotExpr::new(column("b", 3))),
        Arc::new(NegativeExpr::new(column("i", 0))),
        Arc::new(IsNullExpr::new(column("i", 0))),
        Arc::new(IsNotNullExpr::new(column("i", 0))),
        list(false, vec![one()]),
        list(true, vec![one()]),
        list(false, vec![one(), lit(ScalarValue::from(2_i64))]),
        list(false, vec![lit(ScalarValue::from(2_i64)), one()]),
        like(false, false),
        like(true, false),
        like(false, true),
        case(None, None),
        case(None, Some(one())),
        case(Some(column("i", 0)), None),
        binary(
            column("b", 3),
            Operator::And,
            binary(column("b", 3), Operator::And, column("b", 3)),
        ),
        binary(
            binary(column("b", 3), Operator::And, column("b", 3)),
            Operator::And,
            column("b", 3),
        ),
    ];
    let operators = [
        Operator::Eq,
        Operator::NotEq,
        Operator::Lt,
        Operator::LtEq,
        Operator::Gt,
        Operator::GtEq,
        Operator::Plus,
        Operator::Minus,
        Operator::Multiply,
        Operator::Divide,
        Operator::Modulo,
        Operator::And,
        Operator::Or,
        Operator::IsDistinctFrom,
        Operator::IsNotDistinctFrom,
        Operator::RegexMatch,
        Operator::RegexIMatch,
        Operator::RegexNotMatch,
        Operator::RegexNotIMatch,
        Operator::LikeMatch,
        Operator::ILikeMatch,
        Operator::NotLikeMatch,
        Operator::NotILikeMatch,
        Operator::BitwiseAnd,
        Operator::BitwiseOr,
        Operator::BitwiseXor,
        Operator::BitwiseShiftRight,
        Operator::BitwiseShiftLeft,
        Operator::StringConcat,
        Operator::AtArrow,
        Operator::ArrowAt,
        Operator::Arrow,
        Operator::LongArrow,
        Operator::HashArrow,
        Operator::HashLongArrow,
        Operator::AtAt,
        Operator::IntegerDivide,
        Operator::HashMinus,
        Operator::AtQuestion,
        Operator::Question,
        Operator::QuestionAnd,
        Operator::QuestionPipe,
    ];
    found.extend(operators.map(|op| binary(column("i", 0), op, one())));
    found
}

#[test]
fn expressions_differ_by_types_casts_scalars_and_operators() {
    let (all, again) = (expressions(), expressions());
    assert!(all.len() > 70);
    let names: Vec<_> = all.iter().map(expression).collect();
    for (a, one) in names.iter().enumerate() {
        assert_eq!(one, &expression(&again[a]), "{} is not the same again", all[a]);
        for (b, other) in names.iter().enumerate() {
            assert_eq!(a == b, one == other, "{} and {}", all[a], all[b]);
        }
    }
    // Texts alone would not do.
    let texts: std::collections::BTreeSet<_> = all.iter().map(ToString::to_string).collect();
    assert!(texts.len() + 5 < all.len());
}

/// Statements over two tables whose plans all differ.
const STATEMENTS: &[&str] = &[
    "SELECT k FROM t",
    "SELECT k AS l FROM t",
    "SELECT v FROM t",
    "SELECT k, v FROM t",
    "SELECT v, k FROM t",
    "SELECT k + 1 AS k FROM t",
    "SELECT k + 1.0 AS k FROM t",
    "SELECT -0.0 AS k FROM t",
    "SELECT 0.0 AS k FROM t",
    "SELECT CAST(0 AS int) AS k FROM t",
    "SELECT CAST(0 AS smallint) AS k FROM t",
    "SELECT CAST(NULL AS int) AS k FROM t",
    "SELECT CAST('NaN' AS double) AS k FROM t",
    "SELECT k FROM t WHERE v > 1",
    "SELECT k FROM t WHERE v >= 1",
    "SELECT k FROM t WHERE v > 1 AND k > 1",
    "SELECT k FROM t WHERE k IN (1, 2, 3, 4, 5)",
    "SELECT k FROM t WHERE k NOT IN (1, 2, 3, 4, 5)",
    "SELECT t.k FROM t JOIN u ON t.k = u.k",
    "SELECT t.k FROM t LEFT JOIN u ON t.k = u.k",
    "SELECT t.k FROM t JOIN u ON t.k = u.k AND t.v > u.w",
    "SELECT t.k FROM t JOIN u ON t.k = u.k AND t.v < u.w",
    "SELECT t.k FROM t JOIN u ON t.k IS NOT DISTINCT FROM u.k",
    "SELECT t.k FROM t JOIN u ON t.v > u.w",
    "SELECT t.k FROM t CROSS JOIN u",
    "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k)",
    "SELECT k FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k)",
    "SELECT k FROM t UNION ALL SELECT k FROM u",
    "SELECT k FROM u UNION ALL SELECT k FROM t",
    "SELECT unnest(make_array(k, v)) AS k FROM t",
    "SELECT count(*) AS k FROM t",
    "SELECT sum(v) AS k FROM t",
    "SELECT k FROM t ORDER BY k",
    "SELECT k FROM t ORDER BY k DESC",
    "SELECT k FROM t ORDER BY k LIMIT 1",
    "SELECT k FROM t ORDER BY k LIMIT 2",
];

async fn plans() -> Vec<Arc<dyn ExecutionPlan>> {
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    for (name, other) in [("t", "v"), ("u", "w")] {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("k", Arc::new(Int64Array::from(vec![Some(1), Some(2), None]))),
            (other, Arc::new(Float64Array::from(vec![Some(2.5), None, Some(1.0)]))),
        ];
        let rows = RecordBatch::try_from_iter(columns).unwrap();
        let table = MemoryTable::new(rows.schema(), Arc::new(vec![rows]), 100).with_digest(name);
        context.register_table(name, Arc::new(table)).unwrap();
    }
    let mut found = Vec::new();
    for sql in STATEMENTS {
        let frame = context.sql(sql).await.unwrap();
        found.push(frame.create_physical_plan().await.unwrap());
    }
    found
}

#[tokio::test]
async fn plans_differ_by_what_they_compute() {
    let names: Vec<_> = plans().await.iter().map(plan_name).collect();
    let again: Vec<_> = plans().await.iter().map(plan_name).collect();
    assert_eq!(names, again);
    for (a, one) in names.iter().enumerate() {
        for (b, other) in names.iter().enumerate() {
            assert_eq!(a == b, one == other, "{} and {}", STATEMENTS[a], STATEMENTS[b]);
        }
    }
}

/// These forms were committed; see `crate::fingerprint`.
#[tokio::test]
async fn forms_of_plans_stay_what_they_are() {
    let all = expressions();
    let mut form = Form::new("expressions");
    form.list("all", &all, |form, expr| write_expression(form, "expression", expr)).unwrap();
    let mut plans_form = Form::new("plans");
    let plans = plans().await;
    plans_form
        .list("all", &plans, |form, plan| write_plan(form, "plan", plan, &str::to_owned))
        .unwrap();
    assert_eq!(
        [&form.name()[..16], &plans_form.name()[..16]],
        ["75034255dc05d8ba", "89f9e0e991b9b432"]
    );
}

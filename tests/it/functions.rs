//! Functions of the user's: bound to queries, part of fingerprints, and checked around each call.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use arrow::record_batch::RecordBatch;
use datafusion::logical_expr::Volatility;
use tensorquery::runtime::Runtimes;
use tensorquery::session::{PlanOptions, Query, Session, SessionOptions, WorkerPlan};
use tensorquery::storage::ForeignFunction;
use tensorquery::{Error, ErrorKind, Result};

/// Adds a number to an int64 column.
struct Add {
    number: i64,
    digest: String,
    volatility: Volatility,
    calls: Arc<AtomicUsize>,
    answer: Answer,
}

enum Answer {
    Right,
    TooShort,
    OtherType,
    Failure,
}

impl Add {
    fn new(number: i64) -> Self {
        Self {
            number,
            digest: format!("add {number}"),
            volatility: Volatility::Immutable,
            calls: Arc::default(),
            answer: Answer::Right,
        }
    }
}

impl ForeignFunction for Add {
    fn name(&self) -> &str {
        "shifted"
    }

    fn input_types(&self) -> &[DataType] {
        &[DataType::Int64]
    }

    fn return_type(&self) -> &DataType {
        &DataType::Int64
    }

    fn volatility(&self) -> Volatility {
        self.volatility
    }

    fn digest(&self) -> &str {
        &self.digest
    }

    fn call(&self, arguments: Vec<ArrayRef>, rows: usize) -> Result<ArrayRef> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(rows > 0 && arguments[0].len() == rows);
        let values = arguments[0].as_primitive::<Int64Type>();
        let shifted: Int64Array =
            values.iter().map(|value| value.map(|value| value + self.number)).collect();
        Ok(match self.answer {
            Answer::Right => Arc::new(shifted),
            Answer::TooShort => Arc::new(shifted.slice(0, rows - 1)),
            Answer::OtherType => Arc::new(arrow::array::new_null_array(&DataType::Utf8, rows)),
            Answer::Failure => return Err(Error::data("shifted failed")),
        })
    }
}

fn session_with(function: Add) -> Arc<Session> {
    let session = Session::try_new(SessionOptions::default()).unwrap();
    let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int32, true)]));
    let ids: ArrayRef = Arc::new(arrow::array::Int32Array::from_iter(0..100));
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![ids]).unwrap();
    session.register_batches("t", schema, vec![batch]).unwrap();
    session.register_function(Arc::new(function)).unwrap();
    session
}

fn values(query: &Query) -> Result<Vec<i64>> {
    let runtimes = Runtimes::current()?;
    let batches = runtimes.cpu().block_on(query.collect())?;
    let Some(first) = batches.first() else { return Ok(Vec::new()) };
    let batch = concat_batches(&first.schema(), &batches)?;
    Ok(batch.column(0).as_primitive::<Int64Type>().values().to_vec())
}

fn query(session: &Arc<Session>, sql: &str) -> Result<Query> {
    Runtimes::current()?.cpu().block_on(session.query(sql))
}

const SQL: &str = "SELECT shifted(id) AS y FROM t WHERE shifted(id) > 50";

#[test]
fn a_query_keeps_the_function_that_it_was_made_with() {
    let session = session_with(Add::new(1));
    let before = query(&session, SQL).unwrap();
    session.register_function(Arc::new(Add::new(2))).unwrap();
    let after = query(&session, SQL).unwrap();
    session.deregister_function("shifted").unwrap();
    assert_eq!(values(&before).unwrap(), (51..101).collect::<Vec<_>>());
    assert_eq!(values(&after).unwrap(), (51..102).collect::<Vec<_>>());
    assert_eq!(before.functions(), [("shifted".to_owned(), "add 1".to_owned())]);
    assert_eq!(query(&session, SQL).unwrap_err().kind(), ErrorKind::Query);
}

#[test]
fn fingerprints_follow_the_function_and_recipes_carry_it() {
    let runtimes = Runtimes::current().unwrap();
    let mut seen = BTreeSet::new();
    for number in [1, 2, 1] {
        let session = session_with(Add::new(number));
        let found = query(&session, SQL).unwrap();
        let plan = runtimes.cpu().block_on(found.plan_splits(&PlanOptions::default())).unwrap();
        seen.insert(plan.fingerprint().to_owned());
        let recipe = WorkerPlan::of(&plan, None).unwrap();
        let again = runtimes.cpu().block_on(recipe.open()).unwrap();
        assert_eq!(again.fingerprint(), plan.fingerprint());
        assert_eq!(values(again.query()).unwrap(), values(&found).unwrap());
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn built_in_names_and_functions_without_arguments_are_refused() {
    struct Named(&'static str, Vec<DataType>);
    impl ForeignFunction for Named {
        fn name(&self) -> &str {
            self.0
        }
        fn input_types(&self) -> &[DataType] {
            &self.1
        }
        fn return_type(&self) -> &DataType {
            &DataType::Int64
        }
        fn volatility(&self) -> Volatility {
            Volatility::Immutable
        }
        fn digest(&self) -> &str {
            "named"
        }
        fn call(&self, arguments: Vec<ArrayRef>, _rows: usize) -> Result<ArrayRef> {
            Ok(Arc::clone(&arguments[0]))
        }
    }
    let session = Session::try_new(SessionOptions::default()).unwrap();
    let one = || vec![DataType::Int64];
    for (name, types) in [("abs", one()), ("SUM", one()), (" ", one()), ("mine", Vec::new())] {
        let error = session.register_function(Arc::new(Named(name, types))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{name}: {error}");
    }
    session.register_function(Arc::new(Named("mine", one()))).unwrap();
    assert_eq!(session.functions().len(), 1);
    let error = session.deregister_function("mime").unwrap_err();
    assert!(error.to_string().contains("did you mean \"mine\""), "{error}");
}

#[test]
fn wrong_answers_and_failures_name_the_function_and_are_of_user_code() {
    for (answer, wanted) in [
        (Answer::TooShort, "the function shifted returned 99 values for 100 rows"),
        (Answer::OtherType, "the function shifted returned Utf8"),
        (Answer::Failure, "shifted failed"),
    ] {
        let session = session_with(Add { answer, ..Add::new(1) });
        let error = values(&query(&session, "SELECT shifted(id) FROM t").unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        assert!(error.is_of_user_code());
        assert!(error.to_string().contains(wanted), "{error}");
    }
}

#[test]
fn no_rows_call_nothing_and_volatile_functions_are_not_row_local() {
    let function = Add::new(1);
    let calls = Arc::clone(&function.calls);
    let session = session_with(function);
    let none = query(&session, "SELECT shifted(id) FROM t WHERE id < 0").unwrap();
    assert!(values(&none).unwrap().is_empty());
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    let volatile = session_with(Add { volatility: Volatility::Volatile, ..Add::new(1) });
    let found = query(&volatile, "SELECT shifted(id) FROM t").unwrap();
    assert_eq!(values(&found).unwrap().len(), 100);
    let options = PlanOptions::default();
    let planned = found.plan_splits(&options);
    let error = Runtimes::current().unwrap().cpu().block_on(planned).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotShardable);
}

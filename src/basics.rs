//! Methods that functions, plan nodes and tables of ours write alike.

use arrow::array::ArrayRef;
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs};
use datafusion::scalar::ScalarValue;

/// The name and signature of a function; `$this => $name` takes the name from `self`, and `inner` has
/// the name and the aliases of the function inside.
macro_rules! function_basics {
    ($name:literal) => {
        $crate::basics::function_basics!(_this => $name);
    };
    (inner) => {
        $crate::basics::function_basics!(this => this.inner.name());

        fn aliases(&self) -> &[String] {
            self.inner.aliases()
        }
    };
    ($this:ident => $name:expr) => {
        fn as_any(&self) -> &dyn ::std::any::Any {
            self
        }

        fn name(&self) -> &str {
            let $this = self;
            $name
        }

        fn signature(&self) -> &::datafusion::logical_expr::Signature {
            &self.signature
        }
    };
}

/// Methods that `$to`, made of `self`, answers.
macro_rules! forwarded {
    ($this:ident => $to:expr; $(fn $name:ident(&self$(, $arg:ident: $of:ty)*) -> $out:ty;)+) => {$(
        fn $name(&self$(, $arg: $of)*) -> $out {
            let $this = self;
            $to.$name($($arg),*)
        }
    )+};
}

/// The name, properties and children of a plan node: one input, or none.
macro_rules! node_basics {
    ($name:literal, input) => {
        $crate::basics::node_basics!($name);

        fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
            vec![&self.input]
        }
    };
    ($name:literal, leaf) => {
        $crate::basics::node_basics!($name);

        fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
            Vec::new()
        }

        fn with_new_children(
            self: Arc<Self>,
            _: Vec<Arc<dyn ExecutionPlan>>,
        ) -> ::datafusion::error::Result<Arc<dyn ExecutionPlan>> {
            Ok(self)
        }
    };
    ($name:literal) => {
        fn name(&self) -> &str {
            $name
        }

        fn as_any(&self) -> &dyn ::std::any::Any {
            self
        }

        fn properties(&self) -> &Arc<::datafusion::physical_plan::PlanProperties> {
            &self.properties
        }
    };
}

/// The schema of a table that is stored, from `self`.
macro_rules! table_basics {
    ($this:ident => $schema:expr) => {
        fn as_any(&self) -> &dyn ::std::any::Any {
            self
        }

        fn schema(&self) -> ::arrow::datatypes::SchemaRef {
            let $this = self;
            $schema
        }

        fn table_type(&self) -> ::datafusion::logical_expr::TableType {
            ::datafusion::logical_expr::TableType::Base
        }
    };
}

pub(crate) use {forwarded, function_basics, node_basics, table_basics};

/// The result of arguments as arrays: one value where all of them are.
pub(crate) fn computed(
    args: &ScalarFunctionArgs,
    compute: impl FnOnce(&[ArrayRef]) -> Result<ArrayRef>,
) -> Result<ColumnarValue> {
    let is_one = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
    let rows = if is_one { 1 } else { args.number_rows };
    let arrays = args.args.iter().map(|arg| arg.to_array(rows)).collect::<Result<Vec<_>>>()?;
    let found = compute(&arrays)?;
    Ok(match is_one {
        true => ColumnarValue::Scalar(ScalarValue::try_from_array(&found, 0)?),
        false => ColumnarValue::Array(found),
    })
}

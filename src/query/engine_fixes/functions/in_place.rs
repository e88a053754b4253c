//! A function that computes its result anew, and has everything else of the one whose place it
//! takes.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl};

/// The accessors of a function that has the name, the aliases, the signature and the types of its
/// field `inner`.
macro_rules! accessors_of_inner {
    () => {
        fn as_any(&self) -> &dyn std::any::Any {
            self
        }

        fn name(&self) -> &str {
            self.inner.name()
        }

        fn aliases(&self) -> &[String] {
            self.inner.aliases()
        }

        fn signature(&self) -> &datafusion::logical_expr::Signature {
            self.inner.signature()
        }

        fn return_type(
            &self,
            types: &[arrow::datatypes::DataType],
        ) -> datafusion::error::Result<arrow::datatypes::DataType> {
            self.inner.return_type(types)
        }
    };
}
pub(super) use accessors_of_inner;

/// Computes the result, of the given type, of arguments of one length each.
pub(super) type Compute = fn(&[ArrayRef], &DataType) -> Result<ArrayRef>;

/// The function with the name, the aliases, the signature and the types of another.
pub(super) fn in_place_of(inner: Arc<ScalarUDF>, compute: Compute) -> ScalarUDF {
    ScalarUDF::from(InPlace { inner, compute })
}

#[derive(Debug)]
struct InPlace {
    inner: Arc<ScalarUDF>,
    compute: Compute,
}

// There is one for each name.
impl PartialEq for InPlace {
    fn eq(&self, other: &Self) -> bool {
        self.inner == other.inner
    }
}

impl Eq for InPlace {}

impl Hash for InPlace {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl ScalarUDFImpl for InPlace {
    accessors_of_inner!();

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        computed(&args, |arrays| (self.compute)(arrays, args.return_field.data_type()))
    }
}

/// The result of arguments as arrays: one value where all of them are.
pub(super) fn computed(
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

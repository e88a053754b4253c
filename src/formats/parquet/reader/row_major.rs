//! Matrices of columns, written a few columns at a time, while the decoded values are in the
//! processor's cache.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::internal_datafusion_err;
use datafusion::error::Result as DfResult;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::ProjectionExprs;

use super::group::{Group, Wanted};
use super::lengths::Lengths;
use super::matrix_expr::MatrixExpr;
use super::primitive::{Cells, FlatColumn};
use super::rows::GroupRows;
use super::scan::check_rows;
use crate::formats::places::Places;
use crate::matrix::{Matrix, line_columns, matrix_type, native_bytes};

/// The matrices of a projection that are written while their columns are decoded.
#[derive(Default)]
pub(super) struct Matrices(Vec<Made>);

/// Columns of the file, by place, that become a matrix.
struct Made {
    columns: Vec<usize>,
    item: DataType,
}

/// Columns of a matrix that are written together.
pub(super) struct Line {
    matrix: usize,
    /// The place in the matrix of the first of them.
    first: usize,
    /// By place in the matrix, that among the columns in ascending order.
    order: Vec<usize>,
}

/// The rows of a line's columns, batch by batch.
pub(super) struct LineRows {
    /// How many batches are read at a time.
    at_once: usize,
    rows: Columns,
}

enum Columns {
    /// From the pages of the columns.
    Flat {
        columns: Vec<Box<dyn FlatColumn>>,
        left: usize,
        lengths: Lengths,
    },
    Read(GroupRows),
}

/// The next batches of a row group's matrices, in which some columns may not be written yet.
pub(super) type Batches = Vec<VecDeque<Matrix>>;

impl Matrices {
    /// The matrices of `projection`, over the columns of a file, if every column of the file is
    /// needed once.
    pub(super) fn of(projection: &ProjectionExprs, file: &Schema) -> Self {
        let matrices = projection.iter().filter(|expr| is_matrix(&expr.expr));
        let Some(found) = matrices.map(|expr| Made::of(&expr.expr, file)).collect() else {
            return Self::default();
        };
        let found = Self(found);
        let mut all = found.other_columns(projection);
        all.extend(found.columns());
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        if all.len() == count { found } else { Self::default() }
    }

    /// The columns of the file that they are made of.
    pub(super) fn columns(&self) -> impl Iterator<Item = usize> {
        self.0.iter().flat_map(|made| made.columns.iter().copied())
    }

    /// The columns that the rest of the projection needs, ascending.
    pub(super) fn other_columns(&self, projection: &ProjectionExprs) -> Vec<usize> {
        let others = projection.iter().filter(|expr| self.is_empty() || !is_matrix(&expr.expr));
        ProjectionExprs::new(others.cloned()).column_indices()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The projected schema: `columns` of the file, and then the matrices.
    pub(super) fn schema(&self, file: &Schema, columns: &[usize]) -> DfResult<SchemaRef> {
        let mut fields = file.project(columns)?.fields().to_vec();
        for made in &self.0 {
            let width = i32::try_from(made.columns.len());
            let width = width.map_err(|_| internal_datafusion_err!("a matrix is too wide"))?;
            fields.push(Arc::new(Field::new("matrix", matrix_type(&made.item, width), false)));
        }
        Ok(Arc::new(Schema::new(fields)))
    }

    /// `projection` over that schema.
    pub(super) fn project(
        &self,
        projection: ProjectionExprs,
        schema: &SchemaRef,
    ) -> DfResult<ProjectionExprs> {
        let places = Places::of(schema);
        let mut next = schema.fields().len() - self.len();
        projection.try_map_exprs(|expr| {
            if self.is_empty() || !is_matrix(&expr) {
                return places.reassign(expr);
            }
            next += 1;
            Ok(Arc::new(Column::new("matrix", next - 1)))
        })
    }

    /// The columns, ascending, and the place of each line of columns.
    pub(super) fn lines(&self) -> impl Iterator<Item = (Vec<usize>, Line)> {
        self.0.iter().enumerate().flat_map(|(matrix, made)| {
            let together = line_columns(made.size());
            made.columns.chunks(together).enumerate().map(move |(number, columns)| {
                let mut ascending = columns.to_vec();
                ascending.sort_unstable();
                let place = |column| ascending.partition_point(|other| other < column);
                let order = columns.iter().map(place).collect();
                (ascending, Line { matrix, first: number * together, order })
            })
        })
    }

    /// Reads the next rows of a line's columns into its matrices; the first line's columns set the
    /// number of rows.
    pub(super) fn read(
        &self,
        line: &Line,
        rows: &mut LineRows,
        batches: &mut Batches,
    ) -> DfResult<()> {
        let (made, batches) = (&self.0[line.matrix], &mut batches[line.matrix]);
        let count = if line.first == 0 { rows.at_once } else { batches.len() };
        for number in 0..count {
            let found = rows.next()?;
            let Some((rows, cells)) = &found else {
                return batches.get(number).map_or(Ok(()), |batch| check_rows(0, batch.rows()));
            };
            if line.first == 0 {
                let matrix = Matrix::new(*rows, made.columns.len(), made.size());
                batches.push_back(matrix.ok_or_else(|| {
                    internal_datafusion_err!("a matrix of {rows} rows exceeds the address space")
                })?);
            }
            let batch = &mut batches[number];
            check_rows(*rows, batch.rows())?;
            let bytes: Vec<&[u8]> = line.order.iter().map(|place| cells[*place].bytes()).collect();
            for bytes in &bytes {
                check_rows(bytes.len() / made.size(), *rows)?;
            }
            batch.write(line.first, &bytes);
            for (column, place) in (line.first..).zip(&line.order) {
                batch.set_nulls(column, cells[*place].nulls());
            }
        }
        Ok(())
    }

    /// The next batch of each matrix: its rows and itself; None where one has no more.
    pub(super) fn take(&self, batches: &mut Batches) -> DfResult<Option<Vec<(usize, ArrayRef)>>> {
        let mut taken = Vec::with_capacity(self.len());
        for (made, batches) in self.0.iter().zip(batches) {
            let Some(matrix) = batches.pop_front() else { return Ok(None) };
            let rows = matrix.rows();
            let matrix = matrix
                .finish(&made.item)
                .ok_or_else(|| internal_datafusion_err!("no matrix of {}", made.item))?;
            taken.push((rows, Arc::new(matrix) as ArrayRef));
        }
        Ok(Some(taken))
    }

    /// No batches yet.
    pub(super) fn batches(&self) -> Batches {
        self.0.iter().map(|_| VecDeque::new()).collect()
    }

    /// By matrix, whether rows must be read.
    pub(super) fn due(batches: &Batches) -> Vec<bool> {
        batches.iter().map(VecDeque::is_empty).collect()
    }
}

impl LineRows {
    /// The rows of `columns`, ascending, of a row group whose chunks are there.
    pub(super) fn open(group: &Group, columns: &[usize], lengths: Lengths) -> DfResult<Self> {
        let left = group.rows();
        let at_once = group.batches_at_once(left, lengths);
        let rows = match group.flat_columns(columns) {
            Some(columns) => Columns::Flat { columns, left, lengths },
            None => Columns::Read(group.read(columns, &Wanted::all(left), false, lengths)?),
        };
        Ok(Self { at_once, rows })
    }

    /// The next rows: how many, and the numbers of each column.
    fn next(&mut self) -> DfResult<Option<(usize, Vec<Cells<'_>>)>> {
        match &mut self.rows {
            Columns::Flat { columns, left, lengths } => {
                let rows = lengths.next().min(*left);
                *left -= rows;
                let cells =
                    columns.iter_mut().filter(|_| rows > 0).map(|column| column.cells(rows));
                let cells: Vec<Cells<'_>> = cells.collect::<Result<_, _>>()?;
                Ok((rows > 0).then_some((rows, cells)))
            }
            Columns::Read(read) => Ok(read
                .next()?
                .map(|(rows, columns)| (rows, columns.into_iter().map(Cells::Decoded).collect()))),
        }
    }
}

impl Cells<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Stored(bytes) => bytes,
            Self::Decoded(array) => native_bytes(array.as_ref()),
        }
    }

    fn nulls(&self) -> Option<&NullBuffer> {
        match self {
            Self::Stored(_) => None,
            Self::Decoded(array) => array.nulls(),
        }
    }
}

impl Line {
    pub(super) fn is_due(&self, due: &[bool]) -> bool {
        due[self.matrix]
    }
}

impl Made {
    fn of(expr: &Arc<dyn PhysicalExpr>, file: &Schema) -> Option<Self> {
        let matrix = expr.as_any().downcast_ref::<MatrixExpr>()?;
        let column = |expr: &Arc<dyn PhysicalExpr>| {
            let place = expr.as_any().downcast_ref::<Column>()?.index();
            (file.field(place).data_type() == matrix.item()).then_some(place)
        };
        let columns = matrix.columns().iter().map(column).collect::<Option<Vec<_>>>()?;
        Some(Self { columns, item: matrix.item().clone() })
    }

    fn size(&self) -> usize {
        self.item.primitive_width().unwrap_or_default()
    }
}

fn is_matrix(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.as_any().is::<MatrixExpr>()
}

//! Pieces of sequences, copied side by side into packs.

use std::ops::Range;

use crate::{Error, Result};

/// Pieces: how many elements each has, and where it begins in the packs of a batch.
#[derive(Debug)]
pub struct Pieces {
    to: Vec<usize>,
    lengths: Vec<usize>,
}

impl Pieces {
    /// Pieces by place and length.
    ///
    /// # Errors
    /// `Config` where these are no places and lengths of equally many pieces.
    pub fn try_new(to: &[i64], lengths: &[i64]) -> Result<Self> {
        if to.len() != lengths.len() {
            return Err(Error::config("pieces need a place and a length each"));
        }
        Ok(Self { to: numbers(to)?, lengths: numbers(lengths)? })
    }

    /// Pieces side by side in packs of `length` elements; pack `i` has the pieces from number
    /// `ends[i]` on to `ends[i + 1]`.
    ///
    /// Also where each sequence of the batch begins, with the end of the last one: the padding of a
    /// pack is a sequence of its own.
    ///
    /// # Errors
    /// `Config` where a pack has no room for its pieces, or the batch more than 2^31 - 1 elements.
    pub fn side_by_side(ends: &[i64], lengths: &[i64], length: usize) -> Result<(Self, Vec<i32>)> {
        let (ends, lengths) = (numbers(ends)?, numbers(lengths)?);
        let (mut to, mut bounds) = (Vec::with_capacity(lengths.len()), vec![0]);
        for (pack, pieces) in ends.windows(2).enumerate() {
            let pack_end = (pack + 1).checked_mul(length).ok_or_else(outside)?;
            let mut at = pack * length;
            for piece in lengths.get(pieces[0]..pieces[1]).ok_or_else(outside)? {
                to.push(at);
                at = at.checked_add(*piece).filter(|end| *end <= pack_end).ok_or_else(outside)?;
                bounds.push(at);
            }
            bounds.push(pack_end);
        }
        if to.len() != lengths.len() {
            return Err(outside());
        }
        bounds.dedup();
        let bounds = bounds.into_iter().map(|bound| i32::try_from(bound).map_err(|_| outside()));
        Ok((Self { to, lengths }, bounds.collect::<Result<_>>()?))
    }

    /// Where each piece begins.
    pub fn places(&self) -> impl Iterator<Item = i64> {
        self.to.iter().map(|to| *to as i64)
    }

    /// Copies the elements of the pieces, of `width` bytes each, from where they begin in `source`.
    ///
    /// # Errors
    /// `Config` for a piece that does not lie in both.
    pub fn copy(&self, source: &[u8], target: &mut [u8], width: usize, from: &[i64]) -> Result<()> {
        if from.len() != self.to.len() {
            return Err(Error::config("pieces need a place that they come from each"));
        }
        for ((from, to), length) in numbers(from)?.into_iter().zip(&self.to).zip(&self.lengths) {
            let source = range(from, *length, width).and_then(|range| source.get(range));
            let target = range(*to, *length, width).and_then(|range| target.get_mut(range));
            let (Some(source), Some(target)) = (source, target) else { return Err(outside()) };
            target.copy_from_slice(source);
        }
        Ok(())
    }

    /// Copies the elements of the pieces from wherever `source` has the bytes of each, by number and
    /// length, and fills what no piece covers with the element `fill`.
    ///
    /// # Errors
    /// As `source`; `Config` for a piece of another length than its bytes, that does not lie in
    /// `target`, or that begins before the end of the one before.
    pub fn gather<'a>(
        &self,
        target: &mut [u8],
        fill: &[u8],
        mut source: impl FnMut(usize, usize) -> Result<&'a [u8]>,
    ) -> Result<()> {
        let pad = |gap: Option<&mut [u8]>| {
            let elements = gap.ok_or_else(outside)?.chunks_exact_mut(fill.len());
            elements.for_each(|element| element.copy_from_slice(fill));
            Ok::<_, Error>(())
        };
        let mut done = 0;
        for (number, (to, length)) in self.to.iter().zip(&self.lengths).enumerate() {
            let own = range(*to, *length, fill.len()).ok_or_else(outside)?;
            pad(target.get_mut(done..own.start))?;
            done = own.end;
            let source = source(number, *length)?;
            let own = target.get_mut(own).filter(|own| own.len() == source.len());
            own.ok_or_else(outside)?.copy_from_slice(source);
        }
        pad(target.get_mut(done..))
    }

    /// Numbers the elements of each piece from zero in `positions`, and writes the piece's number to
    /// `documents`. In `loss` all elements but the first of a piece are 1. Elements of no piece are 0,
    /// -1 and 0.
    ///
    /// # Errors
    /// `Config` for a piece that does not lie in one of them, or that begins before the end of the one before.
    pub fn mark(
        &self,
        positions: &mut [i64],
        documents: &mut [i64],
        loss: &mut [u8],
    ) -> Result<()> {
        let all = positions.len();
        if documents.len() != all || loss.len() != all {
            return Err(outside());
        }
        let ends = self.to.iter().zip(&self.lengths).map(|(to, length)| to.checked_add(*length));
        let mut done = 0;
        // Behind the last piece is a gap, too.
        let pieces = (0_i64..).zip(self.to.iter().zip(ends)).map(Some).chain([None]);
        for piece in pieces {
            let begin = piece.map_or(all, |(_, (to, _))| *to);
            let gap = done..begin;
            positions.get_mut(gap.clone()).ok_or_else(outside)?.fill(0);
            documents[gap.clone()].fill(-1);
            loss[gap].fill(0);
            let Some((number, (_, end))) = piece else { break };
            done = end.ok_or_else(outside)?;
            let own = positions.get_mut(begin..done).ok_or_else(outside)?;
            own.iter_mut().zip(0..).for_each(|(position, own)| *position = own);
            documents[begin..done].fill(number);
            loss[begin..done].fill(1);
            loss[begin..done].iter_mut().take(1).for_each(|first| *first = 0);
        }
        Ok(())
    }
}

fn numbers(of: &[i64]) -> Result<Vec<usize>> {
    of.iter().map(|number| usize::try_from(*number).map_err(|_| outside())).collect()
}

fn range(start: usize, length: usize, width: usize) -> Option<Range<usize>> {
    let (start, length) = (start.checked_mul(width)?, length.checked_mul(width)?);
    Some(start..start.checked_add(length)?)
}

fn outside() -> Error {
    Error::config("a piece lies outside of its packs, or of what was read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_copied_and_marked_where_they_belong() {
        let pieces = Pieces::try_new(&[0, 4], &[3, 2]).unwrap();
        let source = [1, 1, 2, 2, 3, 3, 4, 4, 5, 5];
        let mut target = [0; 12];
        pieces.copy(&source, &mut target, 2, &[2, 0]).unwrap();
        assert_eq!(target, [3, 3, 4, 4, 5, 5, 0, 0, 1, 1, 2, 2]);
        let mut target = [7; 14];
        let sources: [&[u8]; 2] = [&[3, 3, 4, 4, 5, 5], &[1, 1, 2, 2]];
        pieces.gather(&mut target, &[8, 9], |number, _| Ok(sources[number])).unwrap();
        assert_eq!(target, [3, 3, 4, 4, 5, 5, 8, 9, 1, 1, 2, 2, 8, 9]);
        let (mut positions, mut documents, mut loss) = ([9; 6], [9; 6], [9; 6]);
        pieces.mark(&mut positions, &mut documents, &mut loss).unwrap();
        assert_eq!(positions, [0, 1, 2, 0, 0, 1]);
        assert_eq!(documents, [0, 0, 0, -1, 1, 1]);
        assert_eq!(loss, [0, 1, 1, 0, 0, 1]);
    }

    #[test]
    fn pieces_lie_side_by_side_and_padding_is_a_sequence() {
        let (pieces, bounds) = Pieces::side_by_side(&[0, 2, 3], &[1, 2, 4], 4).unwrap();
        assert_eq!(pieces.places().collect::<Vec<_>>(), [0, 1, 4]);
        assert_eq!(bounds, [0, 1, 3, 4, 8]);
        let (_, bounds) = Pieces::side_by_side(&[0], &[], 4).unwrap();
        assert_eq!(bounds, [0]);
        for (ends, lengths) in [
            (&[0, 2][..], &[3, 2][..]),
            (&[0, 1], &[5]),
            (&[0, 1], &[1, 1]),
            (&[0, 2], &[1]),
            (&[1, 0], &[1]),
            (&[0, 1], &[-1]),
            (&[0, 1], &[i64::MAX]),
        ] {
            assert!(Pieces::side_by_side(ends, lengths, 4).is_err(), "{ends:?} {lengths:?}");
        }
        assert!(Pieces::side_by_side(&[0, 0], &[], 1 << 31).is_err());
    }

    #[test]
    fn a_piece_outside_is_an_error() {
        assert!(Pieces::try_new(&[0], &[1, 2]).is_err());
        assert!(Pieces::try_new(&[-1], &[1]).is_err());
        let pieces = Pieces::try_new(&[i64::MAX, 0], &[i64::MAX, 1]).unwrap();
        assert!(pieces.copy(&[0; 8], &mut [0; 8], 8, &[0, 0]).is_err());
        let pieces = Pieces::try_new(&[3], &[2]).unwrap();
        for (source, target, from) in [(4, 8, 3), (8, 4, 0), (8, 8, 7)] {
            assert!(pieces.copy(&vec![0; source], &mut vec![0; target], 1, &[from]).is_err());
        }
        assert!(pieces.copy(&[0; 8], &mut [0; 8], 1, &[]).is_err());
        assert!(pieces.mark(&mut [0; 5], &mut [0; 4], &mut [0; 5]).is_err());
        assert!(pieces.mark(&mut [0; 5], &mut [0; 5], &mut [0; 5]).is_ok());
        for (source, target) in [(1, 5), (3, 5), (2, 4)] {
            let source = vec![0; source];
            assert!(pieces.gather(&mut vec![0; target], &[0], |_, _| Ok(&source)).is_err());
        }
        let overlapping = Pieces::try_new(&[0, 1], &[2, 2]).unwrap();
        assert!(overlapping.gather(&mut [0; 5], &[0], |_, _| Ok(&[0; 2])).is_err());
        assert!(overlapping.mark(&mut [0; 5], &mut [0; 5], &mut [0; 5]).is_err());
    }
}

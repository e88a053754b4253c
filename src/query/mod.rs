//! See the design: one purpose.

//! NumPy arrays over memory of Rust.

#![allow(unsafe_code)]

use numpy::{Element, PyArray1, ndarray::ArrayView1};
use pyo3::prelude::*;

/// A read-only array of the values that `of` finds in `owner`, without a copy. The array keeps
/// `owner` alive.
///
/// # Errors
/// NumPy refuses to make the array read-only.
pub(crate) fn borrowed<'py, C, T>(owner: &Bound<'py, C>, of: impl for<'a> FnOnce(&'a C) -> &'a [T]) -> PyResult<Bound<'py, PyArray1<T>>>
where
    C: pyo3::PyClass<Frozen = pyo3::pyclass::boolean_struct::True> + Sync,
    T: Element,
{
    let values = ArrayView1::from(of(owner.get()));
    // SAFETY: `owner` is frozen, so that its values neither move nor change while it lives, and the
    // array holds a reference to it. The array is made read-only before Python can see it, so that
    // nothing writes to memory behind a shared reference.
    let array = unsafe { PyArray1::borrow_from_array(&values, owner.clone().into_any()) };
    array.call_method1("setflags", (false,))?;
    Ok(array)
}

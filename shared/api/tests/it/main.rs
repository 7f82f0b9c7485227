//! The types of the API: the CRDs made of them, and objects read into them.

mod crds;
mod objects;

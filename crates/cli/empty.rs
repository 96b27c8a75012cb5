//! Nothing: the package is the program `spinney`.
//!
//! It is a library because cargo lets a package's own tests turn a feature on
//! (`fault-injection`, which no release has) where there is one to depend on.

//! The files of this repository.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// The root of the repository.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The text of a file, by its path from the root.
pub(crate) fn read(path: &str) -> Result<String> {
    fs::read_to_string(workspace().join(path)).with_context(|| path.to_owned())
}

/// Finds the files below a folder with this extension, except built and hidden ones.
pub(crate) fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            files(&path, extension, found)?;
        } else if path.extension().is_some_and(|known| known == extension) {
            found.push(path);
        }
    }
    Ok(())
}

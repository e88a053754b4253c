//! Folders of tables.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder that is removed on drop. Each input has its own: files are known by path, size and time of the last write.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// A new folder, in memory where that is a file system.
    ///
    /// # Panics
    /// Where it cannot be made.
    pub fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let memory = Path::new("/dev/shm");
        let above = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = above.join(format!("tensorquery-fuzz-{}-table-{number}", std::process::id()));
        std::fs::create_dir(&path).expect("the folder can be made");
        Self { path }
    }

    /// The path of a file or folder in it.
    pub fn path(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    /// Writes a file, and says its path.
    ///
    /// # Panics
    /// Where it cannot be written.
    pub fn write(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.path.join(name);
        if let Some(above) = path.parent() {
            std::fs::create_dir_all(above).expect("a folder in it can be made");
        }
        std::fs::write(&path, bytes).expect("a file in it can be written");
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.path).expect("the folder can be removed");
    }
}

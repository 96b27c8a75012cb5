//! Replaces a text in one file of a volume, so that a crash leaves the old file or the new one.
//!
//! `edit_file IMAGE PATH OLD NEW`

use spinney::Volume;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [image, path, old, new] = words.as_slice() else {
        return Err("edit_file IMAGE PATH OLD NEW".into());
    };
    let volume = Volume::open_writable(image)?;
    let text = String::from_utf8(volume.read(path)?)?;
    let count = text.matches(old.as_str()).count();

    let transaction = volume.transaction()?;
    volume.write(path, text.replace(old.as_str(), new).as_bytes())?;
    volume.set_xattr(path, "user.edited", b"by edit_file")?;
    transaction.commit()?;

    volume.close()?;
    println!("{count} replaced");
    Ok(())
}

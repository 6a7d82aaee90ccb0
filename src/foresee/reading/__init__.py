"""Files that people bring, read into rows: images, tables, arrays. `foresee.read` is the way in."""

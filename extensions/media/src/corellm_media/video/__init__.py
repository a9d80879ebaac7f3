"""Video files: which they are (`integrity`), and their frames on demand (`files`). Imports neither numpy nor FFmpeg."""

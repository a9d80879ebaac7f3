"""Videos: what a processor gets, and how one is read from any accepted form. Imports neither numpy nor FFmpeg."""

from corellm.media.video.loading import is_frame, is_frames_and_metadata, load_video
from corellm.media.video.video import FrameSource, Video, VideoMetadata

__all__ = ["FrameSource", "Video", "VideoMetadata", "is_frame", "is_frames_and_metadata", "load_video"]

"""Videos: what a processor sees of one, and how one is read from any form. Imports neither numpy nor FFmpeg."""

from corellm.multimodal.video.clip import FrameSource, Video, VideoMetadata
from corellm.multimodal.video.loading import is_frame, is_frames_and_metadata, load_video

__all__ = ["FrameSource", "Video", "VideoMetadata", "is_frame", "is_frames_and_metadata", "load_video"]

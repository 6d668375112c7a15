"""What lies beside the picture: sound and subtitles, copied bit by bit where the container takes them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av
import av.error

from vdenoise.video.probe import VideoError, VideoInfo, open_container

# Per container (libav's name of the muxer): what sound becomes that it does not take as it is.
ENCODERS = {
    "mp4": "aac", "mov": "aac", "ipod": "aac", "matroska": "flac", "webm": "libopus", "avi": "libmp3lame",
    "mpeg": "mp2", "vob": "mp2", "mpegts": "aac", "flv": "aac", "nut": "flac",
}  # fmt: skip
# libav can't list these muxers' codecs.
TAKES = {
    "mpegts": {"aac", "ac3", "eac3", "mp2", "mp3", "opus", "dvb_subtitle", "hdmv_pgs_subtitle"},
    "mpeg": {"mp2", "mp3", "ac3"},
    "vob": {"mp2", "mp3", "ac3", "dvd_subtitle"},
}
UNPRIMED = {"avi", "mpeg", "vob"}
BROWSERS = {"aac", "mp3", "opus", "flac"}  # sound that browsers play in mp4
SOUND = ("keep", "browser", "none")
logger = logging.getLogger(__name__)


class Tracks:
    """The tracks of a source on their way into an output, kept side by side with its picture.

    Args:
        info: the source.
        output: the container; no packet has been put in yet.
        origin: time of the source that is the output's zero, in seconds.
        sound: "keep" copies what the container takes and encodes the rest, "browser" encodes also what
            browsers don't play, "none" leaves sound and subtitles out.
    """

    def __init__(self, info: VideoInfo, output: Any, origin: Fraction, sound: str = "keep") -> None:
        if sound not in SOUND:
            raise VideoError(f"sound must be one of {', '.join(SOUND)}, got {sound!r}")
        self.output, self.origin, self.reached = output, origin, float("-inf")
        self.source = open_container(info.path)
        self.copies: dict[int, Any] = {}
        self.encoders: dict[int, Any] = {}
        if sound != "none":
            takes = TAKES.get(output.format.name, output.supported_codecs)
            for track in self.source.streams.audio:
                self._add_sound(track, takes, takes & BROWSERS if sound == "browser" else takes)
            for text in self.source.streams.subtitles:
                self._add_subtitles(text, takes)
        self._packets: Iterator[Any] | None = None
        if chosen := [self.source.streams[i] for i in (*self.copies, *self.encoders)]:
            self._packets = self.source.demux(*chosen)

    def _add_sound(self, track: Any, takes: set[str], wanted: set[str]) -> None:
        context = track.codec_context
        name = context.name if context is not None else "unknown"
        canonical = context.codec.canonical_name if context is not None else name
        if canonical in wanted or name in wanted:
            try:
                copy = self.copies[track.index] = self.output.add_stream_from_template(track)
            except (av.error.FFmpegError, ValueError):
                self.copies.pop(track.index, None)
            else:
                copy.metadata.update(track.metadata)
                return
        encoder = ENCODERS.get(self.output.format.name)
        if encoder is None or context is None or not context.sample_rate:
            logger.warning(
                "sound track %d (%s) does not fit into the output and is left out", track.index, name
            )
            return
        rate = context.sample_rate
        if encoder == "libopus":  # knows a few rates only
            rate = min(r for r in (8000, 12000, 16000, 24000, 48000) if r >= min(rate, 48000))
        stream = self.output.add_stream(encoder, rate=rate, layout=_layout(context))
        stream.metadata.update(track.metadata)
        self.encoders[track.index] = stream
        logger.info("sound track %d is encoded anew: %s to %s", track.index, name, encoder)

    def _add_subtitles(self, track: Any, takes: set[str]) -> None:
        name = track.codec_context.name if track.codec_context is not None else "unknown"
        if name in takes:
            copy = self.copies[track.index] = self.output.add_stream_from_template(track)
            copy.metadata.update(track.metadata)
        else:
            logger.warning(
                "subtitle track %d (%s) does not fit into the output and is left out; write .mkv to keep it",
                *(track.index, name),
            )

    def copy(self, until: float) -> None:
        """Bring the tracks on to a time of the source, in seconds."""
        while self._packets is not None and self.reached <= until:
            try:
                packet = next(self._packets, None)
            except av.error.FFmpegError as error:
                logger.warning("the sound is damaged (%s) and ends there", error.strerror)
                packet = None
            if packet is None:
                self._packets = None
                for stream in self.encoders.values():
                    self.output.mux(stream.encode(None))
            elif packet.stream_index in self.encoders:
                self._encode(packet)
            elif packet.dts is not None or packet.pts is not None:
                self._copy(packet)

    def _copy(self, packet: Any) -> None:
        base = packet.time_base
        self.reached = float((packet.pts if packet.dts is None else packet.dts) * base)
        shift = round(self.origin / base)
        if self.output.format.name in UNPRIMED and (packet.pts or packet.dts or 0) < shift:
            return  # these containers can't say that the encoder's first packet is not to be heard
        if packet.pts is not None:
            packet.pts -= shift
        if packet.dts is not None:
            packet.dts -= shift
        packet.stream = self.copies[packet.stream_index]
        self.output.mux(packet)

    def _encode(self, packet: Any) -> None:
        stream = self.encoders[packet.stream_index]
        try:
            frames = packet.decode()
        except av.error.FFmpegError as error:
            logger.warning("a packet of sound is damaged (%s) and left out", error.strerror)
            return
        for frame in frames:
            if frame.pts is not None:
                self.reached = float(frame.pts * frame.time_base)
                frame.pts -= round(self.origin / frame.time_base)
            self.output.mux(stream.encode(frame))

    def close(self) -> None:
        """Let go of the source."""
        self._packets = None
        self.source.close()


def _layout(context: Any) -> str:
    """One or two channels stay; more are kept where they have a name."""
    name = context.layout.name
    return {1: "mono", 2: "stereo"}.get(context.layout.nb_channels, name)

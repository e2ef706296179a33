"""DICOM files that the tests write themselves, against values computed by hand."""

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, JPEGLSLossless, SecondaryCaptureImageStorage, generate_uid

from leakgauge.data.dicom import is_dicom
from leakgauge.data.folder import read_folder
from leakgauge.data.levels import Levels
from leakgauge.data.reader import read, read_given
from leakgauge.errors import BadInput

VALUES = np.array([[0, 1000, 2000], [3000, 4000, 4095]], np.uint16)


def save(path, values=VALUES, *, syntax=ExplicitVRLittleEndian, **fields):
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = syntax
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    data = FileDataset(str(path), Dataset(), file_meta=meta, preamble=bytes(128))
    data.SOPClassUID, data.SOPInstanceUID = SecondaryCaptureImageStorage, meta.MediaStorageSOPInstanceUID
    data.Rows, data.Columns = values.shape[:2]
    data.SamplesPerPixel = 1 if values.ndim == 2 else 3
    data.PhotometricInterpretation = "MONOCHROME2" if values.ndim == 2 else "RGB"
    data.BitsAllocated = data.BitsStored = 8 * values.dtype.itemsize
    data.PixelRepresentation = int(values.dtype.kind == "i")
    if values.ndim == 3:
        data.PlanarConfiguration = 0
    for name, value in fields.items():
        setattr(data, name, value)
    data.HighBit = data.BitsStored - 1
    data.PixelData = values.tobytes()
    if syntax != ExplicitVRLittleEndian:
        data.PixelData = pydicom.encaps.encapsulate([bytes(64)])
    data.save_as(path)


def test_stored_bits_are_the_depth(tmp_path):
    save(tmp_path / "a.dcm", VALUES // 8, BitsStored=12)
    given = read_given(tmp_path / "a.dcm")
    assert given.levels == Levels(0, 4095, "file")
    assert given.labels is None
    assert np.allclose(given.images[0, 0], (VALUES // 8) / 4095)
    save(tmp_path / "b.dcm", VALUES)  # 16 bits are said where nobody knows better
    assert read_given(tmp_path / "b.dcm").levels == Levels(0, 4095, "values")


def test_bytes_and_colours(tmp_path):
    save(tmp_path / "a.dcm", np.array([[0, 51, 255]], np.uint8))
    assert read(tmp_path / "a.dcm")[0].flatten().tolist() == pytest.approx([0, 0.2, 1])
    assert read_given(tmp_path / "a.dcm").levels == Levels()
    save(tmp_path / "c.dcm", np.array([[[255, 0, 51]]], np.uint8))
    assert read(tmp_path / "c.dcm")[0].flatten().tolist() == pytest.approx([1, 0, 0.2])


def test_hounsfield_units_at_the_files_window(tmp_path):
    """Width 400 around 40: by PS3.3, C.11.2.1.2, black is 40 − 0.5 − 399/2 = −160 and white 239."""
    stored = np.array([[0, 864, 1024, 1064, 1263, 4000]], np.uint16)  # −1024, −160, 0, 40, 239 and 2976 HU
    save(tmp_path / "a.dcm", stored, RescaleSlope=1, RescaleIntercept=-1024, WindowCenter=40, WindowWidth=400)
    given = read_given(tmp_path / "a.dcm")
    assert given.levels == Levels(-160, 239, "file")
    assert given.images.flatten().tolist() == pytest.approx([0, 0, 160 / 399, 200 / 399, 1, 1])
    lung = read(tmp_path / "a.dcm", window="-1350:150")[0].flatten()
    assert lung.tolist() == pytest.approx([326 / 1500, 1190 / 1500, 0.9, 1390 / 1500, 1, 1])


def test_files_of_two_windows_share_the_range_of_their_values(tmp_path):
    for name, centre in (("a", 40), ("b", 400)):
        signed = np.array([[-1000, 0, 1000]], np.int16)
        save(tmp_path / f"{name}.dcm", signed, WindowCenter=[centre, 1], WindowWidth=[400, 1])
    given = read_folder(tmp_path)
    assert given.levels == Levels(-1000, 1000, "values")
    assert given.images.flatten().tolist() == pytest.approx([0, 0.5, 1] * 2)


def test_monochrome1_is_inverted(tmp_path):
    save(tmp_path / "a.dcm", BitsStored=12)
    save(tmp_path / "b.dcm", BitsStored=12, PhotometricInterpretation="MONOCHROME1")
    x = read_folder(tmp_path).images
    assert np.allclose(x[0], 1 - x[1])
    assert x[0].max() == 1
    windowed = read_folder(tmp_path, window="1000:3000").images
    assert np.allclose(windowed[0], 1 - windowed[1])


def test_files_without_an_ending_are_recognised(tmp_path):
    save(tmp_path / "IM000001", BitsStored=12)
    (tmp_path / "README").write_text("no picture")
    assert is_dicom(tmp_path / "IM000001")
    assert len(read_folder(tmp_path).images) == 1
    assert len(read(tmp_path / "IM000001")[0]) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"syntax": JPEGLSLossless}, r"cannot be decoded \(transfer syntax JPEG-LS Lossless.*save it uncompressed"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "of kind PALETTE COLOR; MONOCHROME1, .*convert or remove"),
        ({"NumberOfFrames": 7}, "holds 7 frames; save each"),
        ({"Rows": 60000, "Columns": 60000}, "3600000000 pixels"),
        ({"Rows": 7}, "cannot be decoded"),
    ],
)
def test_refusals(tmp_path, fields, message):
    save(tmp_path / "a.dcm", **fields)
    with pytest.raises(BadInput, match=message) as refusal:
        read(tmp_path / "a.dcm")
    assert "\n" not in str(refusal.value)


def test_what_is_no_picture(tmp_path):
    (tmp_path / "a.dcm").write_bytes(b"text")
    with pytest.raises(BadInput, match=r"a\.dcm cannot be read as DICOM"):
        read_folder(tmp_path)
    save(tmp_path / "a.dcm")
    data = pydicom.dcmread(tmp_path / "a.dcm")
    del data.PixelData
    data.save_as(tmp_path / "a.dcm")
    with pytest.raises(BadInput, match="holds no picture"):
        read_folder(tmp_path)

"""The papers' own networks, built from a seed, and the trained victims that travel with the package."""

from leakgauge.models.cifar_resnet import CifarResNet, load_cifar_resnet
from leakgauge.models.cnn import CNN
from leakgauge.models.detection_loss import DetectionLoss
from leakgauge.models.ir152 import IR152
from leakgauge.models.lenet import LeNet
from leakgauge.models.mlp import MLP
from leakgauge.models.pretrained import PRETRAINED, pretrained
from leakgauge.models.resnet import ResNet18
from leakgauge.models.split_vit import SplitViT
from leakgauge.models.swin import Swin
from leakgauge.models.text import TextTransformer
from leakgauge.models.vgg import VGG
from leakgauge.models.vgg19 import VGG19
from leakgauge.models.vit import ViT
from leakgauge.models.yolo import YOLO

__all__ = [
    "CNN",
    "IR152",
    "MLP",
    "PRETRAINED",
    "VGG",
    "VGG19",
    "YOLO",
    "CifarResNet",
    "DetectionLoss",
    "LeNet",
    "ResNet18",
    "SplitViT",
    "Swin",
    "TextTransformer",
    "ViT",
    "load_cifar_resnet",
    "pretrained",
]

"""Makes docs/papers.md: which equation of which paper is computed where, and which tests hold it.

The source is the ``Ref:`` lines of docstrings in the package and in the reproductions, written ``Ref: KEY, PLACE — WHAT``. Every KEY
must be in ``PAPERS``.
Usage: make_papers_page.py [--check]   (with --check nothing is written; exit code 1 if the page is not up to date)
"""
# ruff: noqa: E501 - a title stands in one line

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "leakgauge"
PAGE = Path("docs/papers.md")

PAPERS: dict[str, str] = {
    "Huang et al. 2020": "Huang, Song, Li, Arora: *InstaHide: Instance-hiding Schemes for Private Distributed Learning*. ICML 2020, arXiv:2010.02772",
    "Carlini et al. 2021": "Carlini, Deng, Garg, Jha, Mahloujifar, Mahmoody, Song, Thakurta, Tramèr: *Is Private Learning Possible with Instance Encoding?*. IEEE S&P 2021, arXiv:2011.05315",
    "Zhang et al. 2018": "Zhang, Cissé, Dauphin, Lopez-Paz: *mixup: Beyond Empirical Risk Minimization*. ICLR 2018, arXiv:1710.09412",
    "Wu et al. 2023": "Wu, Chen, Guo, Weinberger: *Learning To Invert: Simple Adaptive Attacks for Gradient Inversion in Federated Learning*. UAI 2023, arXiv:2210.10880",
    "Wang et al. 2023": "Wang, Hugh, Li: *More than Enough is Too Much: Adaptive Defenses against Gradient Leakage in Production Federated Learning*. INFOCOM 2023",
    "Sun et al. 2021": "Sun, Li, Wang, Yang, Li, Chen: *Provable Defense against Privacy Leakage in Federated Learning from Representation Perspective*. CVPR 2021, arXiv:2012.06043",
    "Srivastava et al. 2014": "Srivastava, Hinton, Krizhevsky, Sutskever, Salakhutdinov: *Dropout: A Simple Way to Prevent Neural Networks from Overfitting*. JMLR 15, 2014",
    "Scheliga et al. 2022": "Scheliga, Mäder, Seeland: *PRECODE - A Generic Model Extension to Prevent Deep Gradient Leakage*. WACV 2022, arXiv:2108.04725",
    "Gao et al. 2021": "Gao, Guo, Zhang, Qiu, Wen, Liu: *Privacy-preserving Collaborative Learning with Automatic Transformation Search*. CVPR 2021, arXiv:2011.12505",
    "Alkhouri et al. 2025": "Alkhouri, Liang, Huang, Dao, Qu, Ravishankar, Wang: *SITCOM: Step-wise Triple-Consistent Diffusion Sampling for Inverse Problems*. ICML 2025, arXiv:2410.04479",
    "Donoho and Johnstone 1994": "Donoho, Johnstone: *Ideal Spatial Adaptation by Wavelet Shrinkage*. Biometrika 81, 1994",
    "Ho et al. 2020": "Ho, Jain, Abbeel: *Denoising Diffusion Probabilistic Models*. NeurIPS 2020, arXiv:2006.11239",
    "Huang et al. 2024": "Huang, Meng, Chen, Zheng, Yang, Yi, Wang: *Gradient-Guided Conditional Diffusion Models for Private Image Reconstruction: Analyzing Adversarial Impacts of Differential Privacy and Denoising*. 2024, arXiv:2411.03053",
    "Salimans and Ho 2022": "Salimans, Ho: *Progressive Distillation for Fast Sampling of Diffusion Models*. ICLR 2022, arXiv:2202.00512",
    "Schwethelm et al. 2024": "Schwethelm, Kaiser, Knolle, Lockfisch, Rueckert, Ziller: *Visual Privacy Auditing with Diffusion Models*. TMLR 2025, arXiv:2403.07588",
    "Ulyanov et al. 2018": "Ulyanov, Vedaldi, Lempitsky: *Deep Image Prior*. CVPR 2018, arXiv:1711.10925",
    "Song et al. 2021": "Song, Meng, Ermon: *Denoising Diffusion Implicit Models*. ICLR 2021, arXiv:2010.02502",
    "Yang et al. 2024": "Yang, Ding, Cai, Yu, Wang, Shi: *Guidance with Spherical Gaussian Constraint for Conditional Diffusion*. ICML 2024, arXiv:2402.03201",
    "Balunović et al. 2022": "Balunović, Dimitrov, Staab, Vechev: *Bayesian Framework for Gradient Leakage*. ICLR 2022, arXiv:2111.04706",
    "Bernstein et al. 2018": "Bernstein, Wang, Azizzadenesheli, Anandkumar: *signSGD: Compressed Optimisation for Non-Convex Problems*. ICML 2018, arXiv:1802.04434",
    "Dwork and Roth 2014": "Dwork, Roth: *The Algorithmic Foundations of Differential Privacy*. Foundations and Trends in Theoretical Computer Science 9, 2014",
    "Lyu et al. 2017": "Lyu, Su, Li: *Understanding the Sparse Vector Technique for Differential Privacy*. VLDB 2017, arXiv:1603.01699",
    "Shokri and Shmatikov 2015": "Shokri, Shmatikov: *Privacy-Preserving Deep Learning*. CCS 2015",
    "Abadi et al. 2016": "Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: *Deep Learning with Differential Privacy*. CCS 2016, arXiv:1607.00133",
    "Andrew et al. 2021": "Andrew, Thakkar, McMahan, Ramaswamy: *Differentially Private Learning with Adaptive Clipping*. NeurIPS 2021, arXiv:1905.03871",
    "Andrew et al. 2024": "Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar: *One-shot Empirical Privacy Estimation for Federated Learning*. ICLR 2024, arXiv:2302.03098",
    "APRIL (Lu et al. 2022)": "Lu, Zhang, Zhao, He, Cheng: *APRIL: Finding the Achilles' Heel on Privacy for Vision Transformers*. CVPR 2022, arXiv:2112.14087",
    "Balle et al. 2020": "Balle, Barthe, Gaboardi, Hsu, Sato: *Hypothesis Testing Interpretations and Renyi Differential Privacy*. AISTATS 2020, arXiv:1905.09982",
    "Belghazi et al. 2018": "Belghazi, Baratin, Rajeswar, Ozair, Bengio, Courville, Hjelm: *MINE: Mutual Information Neural Estimation*. ICML 2018, arXiv:1801.04062",
    "Boenisch et al. 2023": "Boenisch, Dziedzic, Schuster, Shamsabadi, Shumailov, Papernot: *When the Curious Abandon Honesty: Federated Learning Is Not Private*. EuroS&P 2023, arXiv:2112.02918",
    "Bonawitz et al. 2017": "Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: *Practical Secure Aggregation for Privacy-Preserving Machine Learning*. CCS 2017, ePrint 2017/281",
    "Bonett and Wright 2000": "Bonett, Wright: *Sample Size Requirements for Estimating Pearson, Kendall and Spearman Correlations*. Psychometrika 65, 2000",
    "Boucheron, Lugosi, Massart 2013": "Boucheron, Lugosi, Massart: *Concentration Inequalities*. Oxford University Press, 2013",
    "Charikar et al. 2002": "Charikar, Chen, Farach-Colton: *Finding Frequent Items in Data Streams*. ICALP 2002",
    "Cheng et al. 2020": "Cheng, Hao, Dai, Liu, Gan, Carin: *CLUB: A Contrastive Log-ratio Upper Bound of Mutual Information*. ICML 2020, arXiv:2006.12013",
    "Chernoff 1952": "Chernoff: *A Measure of Asymptotic Efficiency for Tests of a Hypothesis Based on the Sum of Observations*. Annals of Mathematical Statistics 23, 1952",
    "Clarkson and Woodruff 2013": "Clarkson, Woodruff: *Low Rank Approximation and Regression in Input Sparsity Time*. STOC 2013, arXiv:1207.6365",
    "Clopper and Pearson 1934": "Clopper, Pearson: *The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial*. Biometrika 26, 1934",
    "Cover and Thomas 2006": "Cover, Thomas: *Elements of Information Theory*. Second edition, Wiley 2006",
    "Deng et al. 2021": "Deng, Wang, Li, Wang, Shang, Liu, Rajasekaran, Ding: *TAG: Gradient Attack on Transformer-based Language Models*. Findings of EMNLP 2021, arXiv:2103.06819",
    "Dimitrov et al. 2022": "Dimitrov, Balunović, Konstantinov, Vechev: *Data Leakage in Federated Averaging*. Transactions on Machine Learning Research 2022, arXiv:2206.12395",
    "Dimitrov et al. 2024": "Dimitrov, Baader, Müller, Vechev: *SPEAR: Exact Gradient Inversion of Batches in Federated Learning*. NeurIPS 2024, arXiv:2403.03945",
    "Donsker and Varadhan 1975": "Donsker, Varadhan: *Asymptotic Evaluation of Certain Markov Process Expectations for Large Time*. Communications on Pure and Applied Mathematics, 1975",
    "Doroshenko et al. 2022": "Doroshenko, Ghazi, Kamath, Kumar, Manurangsi: *Connect the Dots: Tighter Discrete Approximations of Privacy Loss Distributions*. PoPETs 2022, arXiv:2207.04380",
    "Efron and Tibshirani 1993": "Efron, Tibshirani: *An Introduction to the Bootstrap*. Chapman & Hall 1993",
    "Feldman and Zrnic 2021": "Feldman, Zrnic: *Individual Privacy Accounting via a Rényi Filter*. NeurIPS 2021, arXiv:2008.11193",
    "Feng et al. 2021": "Feng, Zhong, Gao, Scott, Huang: *TOOD: Task-aligned One-stage Object Detection*. ICCV 2021, arXiv:2108.07755",
    "Fowl et al. 2022": "Fowl, Geiping, Czaja, Goldblum, Goldstein: *Robbing the Fed: Directly Obtaining Private Data in Federated Learning with Modified Models*. ICLR 2022, arXiv:2110.13057",
    "Geiping et al. 2020": "Geiping, Bauermeister, Dröge, Moeller: *Inverting Gradients: How easy is it to break privacy in federated learning?* NeurIPS 2020, arXiv:2003.14053",
    "Golub and Van Loan 2013": "Golub, Van Loan: *Matrix Computations*, 4th edition. Johns Hopkins University Press, 2013",
    "Halko, Martinsson and Tropp 2011": "Halko, Martinsson, Tropp: *Finding Structure with Randomness: Probabilistic Algorithms for Constructing Approximate Matrix Decompositions*. SIAM Review 53(2), 2011",
    "Riess et al. 2024": "Riess, Schwethelm, Kaiser, Mueller, Schnabel, Rueckert, Ziller: *From Mean to Extreme: Formal Differential Privacy Bounds on the Success of Real-World Data Reconstruction Attacks*. 2024, arXiv:2402.12861",
    "Ubaru, Chen and Saad 2017": "Ubaru, Chen and Saad: *Fast estimation of tr(f(A)) via stochastic Lanczos quadrature*. SIAM Journal on Matrix Analysis and "
    "Applications 38(4), 2017",
    "Van Trees 1968": "Van Trees: *Detection, Estimation, and Modulation Theory, Part I*. Wiley, 1968",
    "Li et al. 2023": "Li, Gu, Chen, Li, Wu, Ruan, Si, Fan: *Temporal Gradient Inversion Attacks with Robust Optimization*. arXiv:2306.07883, 2023",
    "Lam et al. 2021": "Lam, Wei, Brooks, Reddi, Mitzenmacher: *Gradient Disaggregation: Breaking Privacy in Federated Learning by Reconstructing the User Participant Matrix*. ICML 2021, arXiv:2106.06089",
    "Makridakis 1993": "Makridakis: *Accuracy Measures: Theoretical and Practical Concerns*. International Journal of Forecasting 9, 1993",
    "Hodrick and Prescott 1997": "Hodrick, Prescott: *Postwar U.S. Business Cycles: An Empirical Investigation*. Journal of Money, Credit and Banking 29, 1997",
    "Hayes et al. 2023": "Hayes, Mahloujifar, Balle: *Bounding Training Data Reconstruction in DP-SGD*. NeurIPS 2023, arXiv:2302.07225",
    "Hoeting et al. 1999": "Hoeting, Madigan, Raftery, Volinsky: *Bayesian Model Averaging: A Tutorial*. Statistical Science 14(4), 1999",
    "Golub et al. 1979": "Golub, Heath, Wahba: *Generalized Cross-Validation as a Method for Choosing a Good Ridge Parameter*. Technometrics 21, 1979",
    "Goodfellow 2015": "Goodfellow: *Efficient Per-Example Gradient Computations*. 2015, arXiv:1510.01799",
    "Hanley and McNeil 1982": "Hanley, McNeil: *The Meaning and Use of the Area under a Receiver Operating Characteristic (ROC) Curve*. Radiology 143, 1982",
    "He et al. 2015": "He, Zhang, Ren, Sun: *Deep Residual Learning for Image Recognition*. CVPR 2016, arXiv:1512.03385",
    "He et al. 2016": "He, Zhang, Ren, Sun: *Identity Mappings in Deep Residual Networks*. ECCV 2016, arXiv:1603.05027",
    "He et al. 2019": "He, Zhang, Lee: *Model Inversion Attacks Against Collaborative Inference*. ACSAC 2019",
    "Hoeffding 1963": "Hoeffding: *Probability Inequalities for Sums of Bounded Random Variables*. Journal of the American Statistical Association 58, 1963",
    "Hoerl and Kennard 1970": "Hoerl, Kennard: *Ridge Regression: Biased Estimation for Nonorthogonal Problems*. Technometrics, 1970",
    "Horé 2010": "Horé, Ziou: *Image Quality Metrics: PSNR vs. SSIM*. ICPR 2010",
    "Hotelling 1936": "Hotelling: *Relations Between Two Sets of Variates*. Biometrika, 1936",
    "Hu et al. 2018": "Hu, Shen, Sun: *Squeeze-and-Excitation Networks*. CVPR 2018, arXiv:1709.01507",
    "Huang et al. 2021": "Huang, Gupta, Song, Li, Arora: *Evaluating Gradient Inversion Attacks and Defenses in Federated Learning*. NeurIPS 2021, arXiv:2112.00059",
    "Jacob et al. 2018": "Jacob, Kligys, Chen, Zhu, Tang, Howard, Adam, Kalenichenko: *Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference*. CVPR 2018, arXiv:1712.05877",
    "Jeon et al. 2021": "Jeon, Kim, Lee, Oh, Ok: *Gradient Inversion with Generative Image Prior*. NeurIPS 2021, arXiv:2110.14962",
    "Jolliffe 2002": "Jolliffe: *Principal Component Analysis*, second edition. Springer, 2002",
    "Jamieson and Talwalkar 2016": "Jamieson, Talwalkar: *Non-stochastic Best Arm Identification and Hyperparameter Optimization*. AISTATS 2016, arXiv:1502.07943",
    "Jordan et al. 2024": "Jordan, Jin, Boza, You, Cesista, Newhouse, Bernstein: *Muon: An optimizer for hidden layers in neural networks*. 2024, kellerjordan.github.io/posts/muon",
    "Kingma and Ba 2015": "Kingma, Ba: *Adam: A Method for Stochastic Optimization*. ICLR 2015, arXiv:1412.6980",
    "Kraskov et al. 2004": "Kraskov, Stögbauer, Grassberger: *Estimating Mutual Information*. Physical Review E, 2004, arXiv:cond-mat/0305641",
    "Kuglin and Hines 1975": "Kuglin, Hines: *The phase correlation image alignment method*. IEEE Conference on Cybernetics and Society, 1975",
    "Kullback 1959": "Kullback: *Information Theory and Statistics*. Wiley, 1959",
    "Ledoit and Wolf 2004": "Ledoit, Wolf: *A Well-Conditioned Estimator for Large-Dimensional Covariance Matrices*. Journal of Multivariate Analysis, 2004",
    "Lewis 1995": "Lewis: *Fast Template Matching*. Vision Interface 1995",
    "Li et al. 2020": "Li, Wang, Wu, Chen, Hu, Li, Tang, Yang: *Generalized Focal Loss*. NeurIPS 2020, arXiv:2006.04388",
    "Lin et al. 2018": "Lin, Han, Mao, Wang, Dally: *Deep Gradient Compression*. ICLR 2018, arXiv:1712.01887",
    "Liu and Zhu 2025": "Liu, Zhu: *Golden Partition Zone: Rethinking Neural Network Partitioning Under Inversion Threats in Collaborative Inference*. 2025, arXiv:2506.15412",
    "Liu et al. 2021": "Liu, Lin, Cao, Hu, Wei, Zhang, Lin, Guo: *Swin Transformer: Hierarchical Vision Transformer using Shifted Windows*. ICCV 2021, arXiv:2103.14030",
    "Liu et al. 2025": "Liu, Su and others: *Muon is Scalable for LLM Training*. 2025, arXiv:2502.16982",
    "Loshchilov and Hutter 2019": "Loshchilov, Hutter: *Decoupled Weight Decay Regularization*. ICLR 2019, arXiv:1711.05101",
    "McMahan et al. 2017": "McMahan, Moore, Ramage, Hampson, Agüera y Arcas: *Communication-Efficient Learning of Deep Networks from Decentralized Data*. AISTATS 2017, arXiv:1602.05629",
    "DAGER (Petrov et al. 2024)": "Petrov, Dimitrov, Baader, Müller, Vechev: *DAGER: Exact Gradient Inversion for Large Language Models*. NeurIPS 2024, arXiv:2405.15586",
    "Lin 2004": "Lin: *ROUGE: A Package for Automatic Evaluation of Summaries*. Workshop Text Summarization Branches Out, ACL 2004",
    "Melis et al. 2019": "Melis, Song, De Cristofaro, Shmatikov: *Exploiting Unintended Feature Leakage in Collaborative Learning*. IEEE Symposium on Security and Privacy 2019, arXiv:1805.04049",
    "Meng et al. 2025": "Meng, Huang, Chen, Shi, Huang, Hou: *Real-Time Privacy Risk Measurement with Privacy Tokens for Gradient Leakage*. 2025, arXiv:2502.02913",
    "Mironov 2017": "Mironov: *Rényi Differential Privacy*. CSF 2017, arXiv:1702.07476",
    "Mironov et al. 2019": "Mironov, Talwar, Zhang: *Rényi Differential Privacy of the Sampled Gaussian Mechanism*. 2019, arXiv:1908.10530",
    "Morozov 1966": "Morozov: *On the solution of functional equations by the method of regularization*. Soviet Mathematics Doklady, 1966",
    "Nguyen et al. 2010": "Nguyen, Wainwright, Jordan: *Estimating Divergence Functionals and the Likelihood Ratio by Convex Risk Minimization*. IEEE Transactions on Information Theory, 2010, arXiv:0809.0853",
    "Nowak et al. 2024": "Nowak, Bott, Khachaturov, Puppe, Krenzer, Hekalo: *QBI: Quantile-Based Bias Initialization for Efficient Private Data Reconstruction in Federated Learning*. 2024, arXiv:2406.18745",
    "Nowozin et al. 2016": "Nowozin, Cseke, Tomioka: *f-GAN: Training Generative Neural Samplers using Variational Divergence Minimization*. NeurIPS 2016, arXiv:1606.00709",
    "Phong et al. 2018": "Phong, Aono, Hayashi, Wang, Moriai: *Privacy-Preserving Deep Learning via Additively Homomorphic Encryption*. IEEE Transactions on Information Forensics and Security, 2018",
    "R-GAP (Zhu and Blaschko 2021)": "Zhu, Blaschko: *R-GAP: Recursive Gradient Attack on Privacy*. ICLR 2021, arXiv:2010.07733",
    "Roy and Vetterli 2007": "Roy, Vetterli: *The Effective Rank: A Measure of Effective Dimensionality*. EUSIPCO 2007",
    "Shekhar and Ramdas 2023": "Shekhar, Ramdas: *Nonparametric Two-Sample Testing by Betting*. IEEE Transactions on Information Theory, 2023, arXiv:2112.09162",
    "Song and Ermon 2020": "Song, Ermon: *Understanding the Limitations of Variational Mutual Information Estimators*. ICLR 2020, arXiv:1910.06222",
    "Sutskever et al. 2013": "Sutskever, Martens, Dahl, Hinton: *On the importance of initialization and momentum in deep learning*. ICML 2013",
    "Szegedy et al. 2016": "Szegedy, Vanhoucke, Ioffe, Shlens, Wojna: *Rethinking the Inception Architecture for Computer Vision*. CVPR 2016, arXiv:1512.00567",
    "Valadi et al. 2026": "Valadi, Åkesson, Östman, Hoseini, Toor, Hellander: *Practical Feasibility of Gradient Inversion Attacks in Federated Learning*. 2026",
    "van den Oord et al. 2018": "van den Oord, Li, Vinyals: *Representation Learning with Contrastive Predictive Coding*. 2018, arXiv:1807.03748",
    "van der Maaten and Hinton 2008": "van der Maaten, Hinton: *Visualizing Data using t-SNE*. Journal of Machine Learning Research 9, 2008",
    "Ville 1939": "Ville: *Étude critique de la notion de collectif*. Gauthier-Villars 1939",
    "Vero et al. 2023": "Vero, Balunović, Dimitrov, Vechev: *TabLeak: Tabular Data Leakage in Federated Learning*. ICML 2023, arXiv:2210.01785",
    "Wainakh et al. 2022": "Wainakh, Ventola, Müßig, Keim, Garcia Cordero, Zimmer, Grube, Kersting, Mühlhäuser: *User-Level Label Leakage from Gradients in Federated Learning*. PoPETs 2022, arXiv:2105.09369",
    "Wang 2004": "Wang, Bovik, Sheikh, Simoncelli: *Image Quality Assessment: From Error Visibility to Structural Similarity*. IEEE Transactions on Image Processing, 2004",
    "Wedin 1973": "Wedin: *Perturbation theory for pseudo-inverses*. BIT Numerical Mathematics, 1973",
    "Wen et al. 2022": "Wen, Geiping, Fowl, Goldblum, Goldstein: *Fishing for User Data in Large-Batch Federated Learning via Gradient Magnification*. ICML 2022, arXiv:2202.00580",
    "Woodruff 2014": "Woodruff: *Sketching as a Tool for Numerical Linear Algebra*. Foundations and Trends in Theoretical Computer Science 10, 2014, arXiv:1411.4357",
    "Yang et al. 2019": "Yang, Zhang, Chang: *Neural Network Inversion in Adversarial Setting via Background Knowledge Alignment*. CCS 2019, arXiv:1902.08552",
    "Yin et al. 2021": "Yin, Mallya, Vahdat, Alvarez, Kautz, Molchanov: *See through Gradients: Image Batch Recovery via GradInversion*. CVPR 2021, arXiv:2104.07586",
    "Zhang 2018": "Zhang, Isola, Efros, Shechtman, Wang: *The Unreasonable Effectiveness of Deep Features as a Perceptual Metric*. CVPR 2018, arXiv:1801.03924",
    "Zhao et al. 2020": "Zhao, Mopuri, Bilen: *iDLG: Improved Deep Leakage from Gradients*. 2020, arXiv:2001.02610",
    "Zheng et al. 2020": "Zheng, Wang, Liu, Li, Ye, Ren: *Distance-IoU Loss: Faster and Better Learning for Bounding Box Regression*. AAAI 2020, arXiv:1911.08287",
    "Zhu et al. 2019": "Zhu, Liu, Han: *Deep Leakage from Gradients*. NeurIPS 2019, arXiv:1906.08935",
}  # fmt: skip
ALIASES = {"Zhu, Liu, Han 2019": "Zhu et al. 2019"}

KEY = re.compile(r"(?P<key>.+?\b\d{4}\b\)?)(?:,\s*)?(?P<rest>.*)")
HEAD = """# Papers: equation, function, test

Made by `make pages` from the `Ref:` lines of the docstrings; do not edit by hand. A test is listed when it imports the
package and names the function. Tests that run over all attacks, defenses or channels at once are not listed again here.
"""


@dataclass(frozen=True)
class Entry:
    """One reference: a paper's key, the place in it, what is computed there, and by which of our names."""

    key: str
    place: str
    what: str
    file: Path
    name: str
    used_as: tuple[str, ...]


def entries(source: Path) -> Iterator[Entry]:
    """The references of all docstrings under ``source``, in the order of files and lines."""
    for file in sorted(source.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module):
                name = "" if isinstance(node, ast.Module) else node.name
                for key, place, what in references(ast.get_docstring(node) or ""):
                    yield Entry(key, place, what, file, name, _used_as(name, tree))


def references(docstring: str) -> Iterator[tuple[str, str, str]]:
    """(key, place, what) of every reference of a docstring: its first sentence, which may name several by semicolons."""
    for paragraph in re.split(r"\n\s*\n", docstring):
        for text in re.split(r"(?:^|\n)\s*Ref:\s*", paragraph)[1:]:
            sentence = re.split(r"\. (?=[A-Z][a-z]+ )", " ".join(text.split()))[0].rstrip(".")
            for part in re.split(r"; (?=[A-Z].*?\b\d{4}\b,)", sentence):
                found = KEY.match(part)
                if found is None:
                    raise SystemExit(f"cannot read the reference {part!r}; write: Ref: KEY, PLACE — WHAT")
                key = ALIASES.get(found["key"], found["key"])
                if key not in PAPERS:
                    raise SystemExit(f"unknown paper {key!r}; add it to PAPERS in tools/{Path(__file__).name}")
                place, _, what = found["rest"].partition(" — ")
                yield key, place, what


def _used_as(name: str, tree: ast.Module) -> tuple[str, ...]:
    """Names by which tests meet a thing: its own, or those of a private class's children."""
    if not name.startswith("_"):
        return (name,) if name else ()
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return tuple(c.name for c in classes if any(isinstance(b, ast.Name) and b.id == name for b in c.bases))


def names_in_tests(tests: Path) -> dict[Path, set[str]]:
    """For every test file that imports the package or a reproduction, all names that occur in it."""
    found: dict[Path, set[str]] = {}
    for file in sorted(tests.rglob("test_*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)]
        if any(name in ast.unparse(node) for node in imports for name in (PACKAGE, "reproductions")):
            used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            found[file] = used | {alias.name for node in imports for alias in node.names}
    return found


def page(root: Path) -> str:
    """The whole page for the package and the tests under ``root``."""
    tests = names_in_tests(root / "tests")
    by_key: dict[str, list[Entry]] = {}
    for entry in (*entries(root / "src" / PACKAGE), *entries(root / "reproductions")):
        by_key.setdefault(entry.key, []).append(entry)
    parts = [HEAD]
    for key in sorted(by_key, key=str.casefold):
        rows = "\n".join(_row(entry, tests, root) for entry in by_key[key])
        parts.append(f"## {key}\n\n{PAPERS[key]}.\n\n| where | what | function | tests |\n|---|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def _row(entry: Entry, tests: dict[Path, set[str]], root: Path) -> str:
    shown = ", ".join(entry.used_as) or entry.file.stem
    code = f"[`{shown}`](../{entry.file.relative_to(root).as_posix()})"
    using = [file.relative_to(root) for file, names in tests.items() if names & set(entry.used_as)]
    links = ", ".join(f"[{file.relative_to('tests').as_posix()}](../{file.as_posix()})" for file in using)
    return f"| {entry.place} | {entry.what} | {code} | {links} |"


def main(arguments: list[str]) -> int:
    target = ROOT / PAGE
    made = page(ROOT)
    if "--check" not in arguments:
        target.write_text(made, encoding="utf-8")
        print(f"written: {PAGE}")
        return 0
    if not target.is_file() or target.read_text(encoding="utf-8") != made:
        print(f"{PAGE} is not up to date; run: make pages")
        return 1
    print(f"{PAGE}: up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

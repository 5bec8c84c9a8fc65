"""The papers behind the methods, as BibTeX."""

BIBTEX = {
    "jiang2022smvr": """
@inproceedings{jiang2022smvr,
  author    = {Jiang, Wei and Wang, Bokun and Wang, Yibo and Zhang, Lijun and Yang, Tianbao},
  title     = {Optimal Algorithms for Stochastic Multi-Level Compositional Optimization},
  booktitle = {International Conference on Machine Learning},
  year      = {2022},
}""",
    "jiang2025revisiting": """
@article{jiang2025revisiting,
  author  = {Jiang, Wei and others},
  title   = {Revisiting Stochastic Multi-Level Compositional Optimization},
  journal = {IEEE Transactions on Pattern Analysis and Machine Intelligence},
  year    = {2025},
}""",
    "jiang2024pmvr": """
@inproceedings{jiang2024pmvr,
  author    = {Jiang, Wei and Yang, Sifan and Yang, Wenhao and Wang, Yibo and Wan, Yuanyu and
               Zhang, Lijun},
  title     = {Projection-Free Variance Reduction Methods for Stochastic Constrained Multi-Level
               Compositional Optimization},
  booktitle = {International Conference on Machine Learning},
  year      = {2024},
}""",
    "gao2024recursive": """
@inproceedings{gao2024recursive,
  author    = {Gao, Hongchang},
  title     = {A Doubly Recursive Stochastic Compositional Gradient Descent Method for Federated
               Multi-Level Compositional Optimization},
  booktitle = {International Conference on Machine Learning},
  year      = {2024},
}""",
    "yang2019tscgd": """
@article{yang2019tscgd,
  author  = {Yang, Shuoguang and Wang, Mengdi and Fang, Ethan X.},
  title   = {Multilevel Stochastic Gradient Methods for Nested Composition Optimization},
  journal = {SIAM Journal on Optimization},
  year    = {2019},
}""",
    "balasubramanian2022": """
@article{balasubramanian2022,
  author  = {Balasubramanian, Krishnakumar and Ghadimi, Saeed and Nguyen, Anthony},
  title   = {Stochastic Multilevel Composition Optimization Algorithms with Level-Independent
             Convergence Rates},
  journal = {SIAM Journal on Optimization},
  year    = {2022},
}""",
    "chen2021scsc": """
@article{chen2021scsc,
  author  = {Chen, Tianyi and Sun, Yuejiao and Yin, Wotao},
  title   = {Solving Stochastic Compositional Optimization is Nearly as Easy as Solving Stochastic
             Optimization},
  journal = {IEEE Transactions on Signal Processing},
  year    = {2021},
}""",
    "zhang2021nested": """
@article{zhang2021nested,
  author  = {Zhang, Junyu and Xiao, Lin},
  title   = {Multilevel Composite Stochastic Optimization via Nested Variance Reduction},
  journal = {SIAM Journal on Optimization},
  year    = {2021},
}""",
    "zhang2024ssd": """
@article{zhang2024ssd,
  author  = {Zhang, Zhe and Lan, Guanghui},
  title   = {Optimal Methods for Convex Nested Stochastic Composite Optimization},
  journal = {Mathematical Programming},
  year    = {2024},
  note    = {arXiv:2011.10076},
}""",
    "wang2017scgd": """
@article{wang2017scgd,
  author  = {Wang, Mengdi and Fang, Ethan X. and Liu, Han},
  title   = {Stochastic Compositional Gradient Descent: Algorithms for Minimizing Compositions of
             Expected-Value Functions},
  journal = {Mathematical Programming},
  year    = {2017},
}""",
    "wang2017ascpg": """
@article{wang2017ascpg,
  author  = {Wang, Mengdi and Liu, Ji and Fang, Ethan X.},
  title   = {Accelerating Stochastic Composition Optimization},
  journal = {Journal of Machine Learning Research},
  year    = {2017},
}""",
    "ghadimi2020nasa": """
@article{ghadimi2020nasa,
  author  = {Ghadimi, Saeed and Ruszczy{\\'n}ski, Andrzej and Wang, Mengdi},
  title   = {A Single Timescale Stochastic Approximation Method for Nested Stochastic Optimization},
  journal = {SIAM Journal on Optimization},
  year    = {2020},
}""",
    "yuan2019sarahc": """
@inproceedings{yuan2019sarahc,
  author    = {Yuan, Huizhuo and Lian, Xiangru and Li, Chris Junchi and Liu, Ji and Hu, Wenqing},
  title     = {Efficient Smooth Non-Convex Stochastic Compositional Optimization via Stochastic Recursive
               Gradient Descent},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2019},
}""",
    "zhang2019civr": """
@inproceedings{zhang2019civr,
  author    = {Zhang, Junyu and Xiao, Lin},
  title     = {A Stochastic Composite Gradient Method with Incremental Variance Reduction},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2019},
}""",
    "zhang2019csaga": """
@inproceedings{zhang2019csaga,
  author    = {Zhang, Junyu and Xiao, Lin},
  title     = {A Composite Randomized Incremental Gradient Method},
  booktitle = {International Conference on Machine Learning},
  year      = {2019},
}""",
    "huo2018vrscpg": """
@inproceedings{huo2018vrscpg,
  author    = {Huo, Zhouyuan and Gu, Bin and Liu, Ji and Huang, Heng},
  title     = {Accelerated Method for Stochastic Composition Optimization with Nonsmooth Regularization},
  booktitle = {AAAI Conference on Artificial Intelligence},
  year      = {2018},
}""",
    "yuan2020stormc": """
@misc{yuan2020stormc,
  author = {Yuan, Huizhuo and Hu, Wenqing},
  title  = {Stochastic Recursive Momentum Method for Non-Convex Compositional Optimization},
  year   = {2020},
}""",
    "qi2021recover": """
@inproceedings{qi2021recover,
  author    = {Qi, Qi and Guo, Zhishuai and Xu, Yi and Jin, Rong and Yang, Tianbao},
  title     = {An Online Method for a Class of Distributionally Robust Optimization with Non-Convex
               Objectives},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2021},
}""",
    "cutkosky2019storm": """
@inproceedings{cutkosky2019storm,
  author    = {Cutkosky, Ashok and Orabona, Francesco},
  title     = {Momentum-Based Variance Reduction in Non-Convex {SGD}},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2019},
}""",
    "fang2018spider": """
@inproceedings{fang2018spider,
  author    = {Fang, Cong and Li, Chris Junchi and Lin, Zhouchen and Zhang, Tong},
  title     = {{SPIDER}: Near-Optimal Non-Convex Optimization via Stochastic Path-Integrated Differential
               Estimator},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2018},
}""",
    "wang2019spiderboost": """
@inproceedings{wang2019spiderboost,
  author    = {Wang, Zhe and Ji, Kaiyi and Zhou, Yi and Liang, Yingbin and Tarokh, Vahid},
  title     = {{SpiderBoost} and Momentum: Faster Variance Reduction Algorithms},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2019},
}""",
    "nguyen2017sarah": """
@inproceedings{nguyen2017sarah,
  author    = {Nguyen, Lam M. and Liu, Jie and Scheinberg, Katya and Tak{\\'a}{\\v{c}}, Martin},
  title     = {{SARAH}: A Novel Method for Machine Learning Problems Using Stochastic Recursive
               Gradient},
  booktitle = {International Conference on Machine Learning},
  year      = {2017},
}""",
    "wang2022sox": """
@inproceedings{wang2022sox,
  author    = {Wang, Bokun and Yang, Tianbao},
  title     = {Finite-Sum Coupled Compositional Stochastic Optimization: Theory and Applications},
  booktitle = {International Conference on Machine Learning},
  year      = {2022},
}""",
    "jiang2022msvr": """
@inproceedings{jiang2022msvr,
  author    = {Jiang, Wei and Li, Gang and Wang, Yibo and Zhang, Lijun and Yang, Tianbao},
  title     = {Multi-block-Single-probe Variance Reduced Estimator for Coupled Compositional
               Optimization},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2022},
}""",
    "kalman1960": """
@article{kalman1960,
  author  = {Kalman, Rudolf E.},
  title   = {A New Approach to Linear Filtering and Prediction Problems},
  journal = {Journal of Basic Engineering},
  year    = {1960},
}""",
}

"""The cases of multi-scale vision in tests of the core."""

# Recipes that need the topic, in configs/.
RECIPES = ("clip/basic.py", "coatnet/base.py", "mvit/base.py")

# tests/models/image_families.py. A class token reads nothing of the queries that the last block
# pools.
IMAGE_CHANGES = {"mvit_v1": {"depths": (1, 2)}}

# tests/models/test_image_families.py: heights and widths, and cases that `make test` leaves out.
OBLONG_IMAGES = {"mvit": (9, 14)}
LATER_IMAGE_CASES = dict.fromkeys(("mvit", "vit:decomposed_2d"))

# tests/models/test_sizes.py: the number of parameters, and how far it may be off.
M = 10**6
B = 10**9
SIZES = {
  ("basic", "basic-s"): ((25 + 108) * M, 0.02),  # Pham et al. 2021, image and text
  ("basic", "basic-m"): ((168 + 184) * M, 0.01),
  ("basic", "basic-l"): ((2.4 + 0.67) * B, 0.02),
  ("coatnet", "coatnet-0"): (25 * M, 0.02),  # Dai et al. 2021, tables 4 and 12
  ("coatnet", "coatnet-1"): (42 * M, 0.012),
  ("coatnet", "coatnet-2"): (75 * M, 0.0067),
  ("coatnet", "coatnet-3"): (168 * M, 0.0067),  # 167.0 by table 3
  ("coatnet", "coatnet-4"): (275 * M, 0.0018),
  ("coatnet", "coatnet-5"): (688 * M, 0.001),
  ("coatnet", "coatnet-6"): (1.47 * B, 0.0034),
  ("coatnet", "coatnet-7"): (2.44 * B, 0.003),
  ("mvit_v1", "mvit-b16"): (37.0 * M, 0.0014),  # Fan et al. 2021, table 9
  ("mvit", "mvit-v2-t"): (24_173_320, 0),
  ("mvit", "mvit-v2-s"): (34_870_216, 0),
  ("mvit", "mvit-v2-b"): (51_472_744, 0),
}

# tests/parity/timm_groups.py. timm's groups of MViT are whole stages; the authors' are blocks, as
# here.
TIMM_GROUPS = {
  ("mvit", "mvit-v2-s"): (
    "mvitv2_small",
    [(r"^stages\.(\d+)\.blocks\.(\d+)", None), (r"^norm", (99999,))],
  )
}

model = dict(type="ResNetSmall", widths=(16, 32, 64), blocks=2, num_classes=10)
dataset = dict(type="Shapes", num_images=2048, size=32, num_classes=10, seed=11)
batch_size = 64
optimizer = dict(type="SGD", lr=0.05, momentum=0.9, weight_decay=5e-4, fused=True)
max_iters = 140
seed = 3407
hooks = [
    dict(type="StepLR", milestones=(90, 130), gamma=0.1),
    dict(type="ActivationMonitor", interval=1),
    dict(type="TextLogger", interval=20),
    dict(type="FinalEval"),
]

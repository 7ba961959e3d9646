"""Layers, aggregations, poolings, normalisations and models of torch_geometric on random graphs, two steps each."""

import pytest
import torch
import torch_geometric.nn as gnn
from torch_geometric.data import Batch, Data

NODES, EDGES, IN, OUT, GRAPHS = 12, 40, 8, 8, 3


def graph():
    edges = torch.randint(0, NODES, (2, EDGES))
    return edges[:, edges[0] != edges[1]]


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [torch.nn.Linear(a, b), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers[:-1])


def train(module, call, steps=2):
    front = torch.nn.Linear(IN, IN)
    back = {}
    optimizer = torch.optim.SGD([*front.parameters(), *module.parameters()], lr=1e-2)
    for _ in range(steps):
        result = call(module, front(torch.randn(NODES, IN)))
        while isinstance(result, (tuple, list)):
            result = result[0]
        assert result.is_floating_point() and back is not None
        loss = (result.square() * torch.linspace(0.5, 1.5, result.numel()).view_as(result)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def plainly(m, x):
    return m(x, graph())


def weighted(m, x):
    e = graph()
    return m(x, e, torch.rand(e.shape[1]))


def attributed(width):
    def call(m, x):
        e = graph()
        return m(x, e, torch.randn(e.shape[1], width))
    return call


def attributed_by_name(width):
    def call(m, x):
        e = graph()
        return m(x, e, edge_attr=torch.randn(e.shape[1], width))
    return call


def typed(m, x):
    e = graph()
    return m(x, e, torch.randint(0, 3, (e.shape[1],)))


def placed(m, x):
    return m(x, torch.randn(NODES, 3), graph())


def batch_of():
    return torch.arange(GRAPHS).repeat_interleave(NODES // GRAPHS)


DEGREES = torch.tensor([1, 2, 3, 4, 3, 2, 1])
LAYERS = {
    "SimpleConv": (lambda: gnn.SimpleConv("mean"), plainly),
    "GCNConv": (lambda: gnn.GCNConv(IN, OUT), plainly), "GCNConv weighted": (lambda: gnn.GCNConv(IN, OUT), weighted),
    "ChebConv": (lambda: gnn.ChebConv(IN, OUT, 3), plainly), "SAGEConv": (lambda: gnn.SAGEConv(IN, OUT), plainly),
    "SAGEConv max": (lambda: gnn.SAGEConv(IN, OUT, aggr="max"), plainly), "SAGEConv lstm": (lambda: gnn.SAGEConv(IN, OUT, aggr="lstm"), lambda m, x: m(x, sorted_graph())),
    "GraphConv": (lambda: gnn.GraphConv(IN, OUT), weighted), "GravNetConv": (lambda: gnn.GravNetConv(IN, OUT, 4, 4, 3), None),
    "GatedGraphConv": (lambda: gnn.GatedGraphConv(OUT, 2), plainly), "ResGatedGraphConv": (lambda: gnn.ResGatedGraphConv(IN, OUT), plainly),
    "GATConv": (lambda: gnn.GATConv(IN, 4, heads=2), plainly), "GATConv edges": (lambda: gnn.GATConv(IN, 4, heads=2, edge_dim=3), attributed(3)),
    "GATv2Conv": (lambda: gnn.GATv2Conv(IN, 4, heads=2), plainly), "GATv2Conv edges": (lambda: gnn.GATv2Conv(IN, 4, heads=2, edge_dim=3), attributed(3)),
    "TransformerConv": (lambda: gnn.TransformerConv(IN, 4, heads=2, edge_dim=3), attributed(3)), "AGNNConv": (lambda: gnn.AGNNConv(), plainly),
    "TAGConv": (lambda: gnn.TAGConv(IN, OUT), weighted), "GINConv": (lambda: gnn.GINConv(mlp(IN, 10, OUT)), plainly),
    "GINConv batch norm": (lambda: gnn.GINConv(torch.nn.Sequential(torch.nn.Linear(IN, 10), torch.nn.BatchNorm1d(10), torch.nn.ReLU(), torch.nn.Linear(10, OUT))), plainly),
    "GINEConv": (lambda: gnn.GINEConv(mlp(IN, 10, OUT), edge_dim=3), attributed(3)), "ARMAConv": (lambda: gnn.ARMAConv(IN, OUT, 2, 2), weighted),
    "SGConv": (lambda: gnn.SGConv(IN, OUT, K=2), plainly), "SSGConv": (lambda: gnn.SSGConv(IN, OUT, alpha=0.1, K=2), plainly), "APPNP": (lambda: gnn.APPNP(3, 0.1), weighted),
    "MFConv": (lambda: gnn.MFConv(IN, OUT), plainly), "RGCNConv": (lambda: gnn.RGCNConv(IN, OUT, 3), typed), "FastRGCNConv": (lambda: gnn.FastRGCNConv(IN, OUT, 3), typed),
    "RGCNConv bases": (lambda: gnn.RGCNConv(IN, OUT, 3, num_bases=2), typed), "RGATConv": (lambda: gnn.RGATConv(IN, OUT, 3), typed),
    "SignedConv": (lambda: gnn.SignedConv(IN, OUT, first_aggr=True), lambda m, x: m(x, graph(), graph())), "DNAConv": (lambda: gnn.DNAConv(IN, heads=2), lambda m, x: m(torch.stack([x, x.tanh()], 1), graph())),
    "PointNetConv": (lambda: gnn.PointNetConv(mlp(IN + 3, 10), mlp(10, OUT)), placed), "GMMConv": (lambda: gnn.GMMConv(IN, OUT, dim=2, kernel_size=3), attributed(2)),
    "NNConv": (lambda: gnn.NNConv(IN, OUT, mlp(3, IN * OUT)), attributed(3)), "CGConv": (lambda: gnn.CGConv(IN, dim=3), attributed(3)),
    "CGConv batch norm": (lambda: gnn.CGConv(IN, dim=3, batch_norm=True), attributed(3)), "EdgeConv": (lambda: gnn.EdgeConv(mlp(2 * IN, OUT)), plainly),
    "FeaStConv": (lambda: gnn.FeaStConv(IN, OUT, heads=2), plainly), "PointTransformerConv": (lambda: gnn.PointTransformerConv(IN, OUT), placed),
    "HypergraphConv": (lambda: gnn.HypergraphConv(IN, OUT), lambda m, x: m(x, torch.stack([torch.randint(0, NODES, (20,)), torch.randint(0, 5, (20,))]))),
    "LEConv": (lambda: gnn.LEConv(IN, OUT), plainly), "PNAConv": (lambda: gnn.PNAConv(IN, OUT, ["mean", "max", "std"], ["identity", "amplification"], DEGREES), plainly),
    "ClusterGCNConv": (lambda: gnn.ClusterGCNConv(IN, OUT), plainly), "GENConv": (lambda: gnn.GENConv(IN, OUT), plainly), "GENConv powermean": (lambda: gnn.GENConv(IN, OUT, aggr="powermean", learn_p=True), plainly),
    "GCN2Conv": (lambda: gnn.GCN2Conv(IN, 0.1, 0.5, 1), lambda m, x: m(x, x.tanh(), graph())), "PANConv": (lambda: gnn.PANConv(IN, OUT, 2), plainly),
    "FiLMConv": (lambda: gnn.FiLMConv(IN, OUT), plainly), "SuperGATConv": (lambda: gnn.SuperGATConv(IN, 4, heads=2), plainly),
    "FAConv": (lambda: gnn.FAConv(IN), lambda m, x: m(x, x.tanh(), graph())), "EGConv": (lambda: gnn.EGConv(IN, OUT, num_heads=2, num_bases=2), plainly),
    "PDNConv": (lambda: gnn.PDNConv(IN, OUT, 3, 6), attributed(3)), "GeneralConv": (lambda: gnn.GeneralConv(IN, OUT, 3), attributed_by_name(3)), "LGConv": (lambda: gnn.LGConv(), plainly),
    "PointGNNConv": (lambda: gnn.PointGNNConv(mlp(IN, 3), mlp(IN + 3, 6), mlp(6, IN)), placed), "GPSConv": (lambda: gnn.GPSConv(IN, gnn.GCNConv(IN, IN), heads=2), lambda m, x: m(x, graph(), batch_of())),
    "AntiSymmetricConv": (lambda: gnn.AntiSymmetricConv(IN), plainly), "DirGNNConv": (lambda: gnn.DirGNNConv(gnn.SAGEConv(IN, OUT)), plainly), "MixHopConv": (lambda: gnn.MixHopConv(IN, OUT, [0, 1, 2]), plainly),
    "HEATConv": (lambda: gnn.HEATConv(IN, OUT, 2, 3, 4, 3, 4), lambda m, x: (lambda e: m(x, e, torch.arange(NODES) % 2, torch.randint(0, 3, (e.shape[1],)), torch.randn(e.shape[1], 3)))(graph())),
    "GCN": (lambda: gnn.GCN(IN, 10, 2, OUT, norm="batch_norm"), plainly), "GraphSAGE": (lambda: gnn.GraphSAGE(IN, 10, 2, OUT, jk="lstm"), plainly), "GIN": (lambda: gnn.GIN(IN, 10, 2, OUT), plainly),
    "GAT": (lambda: gnn.GAT(IN, 10, 2, OUT, heads=2), plainly), "PNA": (lambda: gnn.PNA(IN, 10, 2, OUT, aggregators=["mean", "max"], scalers=["identity"], deg=DEGREES), plainly),
    "EdgeCNN": (lambda: gnn.EdgeCNN(IN, 10, 2, OUT), plainly), "GraphUNet": (lambda: gnn.GraphUNet(IN, 10, OUT, 2), lambda m, x: m(x, graph(), batch_of())), "PMLP": (lambda: gnn.PMLP(IN, 10, OUT, 2), plainly),
    "AttentiveFP": (lambda: gnn.AttentiveFP(IN, 10, OUT, 3, 2, 2), lambda m, x: (lambda e: m(x, e, torch.randn(e.shape[1], 3), batch_of()))(graph())),
    "LINKX": (lambda: gnn.LINKX(NODES, IN, 10, OUT, 2), plainly), "NeuralFingerprint": (lambda: gnn.NeuralFingerprint(IN, 10, OUT, 2), lambda m, x: m(x, graph(), batch_of())),
    "SGFormer": (lambda: gnn.SGFormer(IN, 8, OUT), lambda m, x: m(x, graph(), batch_of())), "Polynormer": (lambda: gnn.Polynormer(IN, 8, OUT), lambda m, x: m(x, graph(), batch_of())),
    "MLP": (lambda: gnn.MLP([IN, 10, OUT]), lambda m, x: m(x)), "DeepGCNLayer": (lambda: gnn.DeepGCNLayer(gnn.GENConv(IN, IN), torch.nn.LayerNorm(IN), torch.nn.ReLU()), plainly),
    "SchNet": (lambda: gnn.SchNet(10, 10, 2, 8), lambda m, x: m(torch.randint(1, 9, (NODES,)), x[:, :3], batch_of())),
}


def sorted_graph():
    e = graph()
    return e[:, e[1].argsort(stable=True)]


@pytest.mark.parametrize("name", [name for name, (_, call) in LAYERS.items() if call])
def test_layer(name):
    make, call = LAYERS[name]
    train(make(), call)


NORMS = ["BatchNorm", "InstanceNorm", "LayerNorm", "GraphNorm", "GraphSizeNorm", "PairNorm", "MeanSubtractionNorm", "MessageNorm", "DiffGroupNorm"]


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("batched", [False, True])
def test_norm(name, batched):
    def call(m, x):
        if name == "MessageNorm":
            return m(x, x.tanh())
        return m(x, batch_of()) if batched and name not in ("BatchNorm", "DiffGroupNorm") else m(x)
    given = {"MessageNorm": (True,), "GraphSizeNorm": (), "PairNorm": (), "MeanSubtractionNorm": (), "DiffGroupNorm": (IN, 2)}.get(name, (IN,))
    train(getattr(gnn, name)(*given), call)


AGGREGATIONS = {
    "Mean": gnn.MeanAggregation, "Sum": gnn.SumAggregation, "Max": gnn.MaxAggregation, "Min": gnn.MinAggregation, "Mul": gnn.MulAggregation, "Var": gnn.VarAggregation, "Std": gnn.StdAggregation,
    "Softmax": lambda: gnn.SoftmaxAggregation(learn=True), "PowerMean": lambda: gnn.PowerMeanAggregation(learn=True), "Median": gnn.MedianAggregation, "LSTM": lambda: gnn.LSTMAggregation(IN, OUT),
    "GRU": lambda: gnn.GRUAggregation(IN, OUT), "Set2Set": lambda: gnn.Set2Set(IN, 2), "DegreeScaler": lambda: gnn.DegreeScalerAggregation("mean", "identity", DEGREES), "Sort": lambda: gnn.SortAggregation(2),
    "Graphormer": lambda: gnn.GraphMultisetTransformer(IN, 2, heads=2), "Attentional": lambda: gnn.AttentionalAggregation(mlp(IN, 1)), "EquilibriumAggregation": lambda: gnn.EquilibriumAggregation(IN, OUT, [6], 2),
    "MLP": lambda: gnn.MLPAggregation(IN, OUT, 4, num_layers=1), "DeepSets": lambda: gnn.DeepSetsAggregation(mlp(IN, 6), mlp(6, OUT)), "SetTransformer": lambda: gnn.SetTransformerAggregation(IN, heads=2),
    "PatchTransformer": lambda: gnn.PatchTransformerAggregation(IN, OUT, 2, 8, heads=2), "Quantile": lambda: gnn.QuantileAggregation(0.3), "VariancePreserving": gnn.VariancePreservingAggregation,
}


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_aggregation(name):
    train(AGGREGATIONS[name](), lambda m, x: m(x, batch_of()))


POOLS = {"TopK": lambda: gnn.TopKPooling(IN, 0.5), "SAG": lambda: gnn.SAGPooling(IN, 0.5), "Edge": lambda: gnn.EdgePooling(IN), "ASA": lambda: gnn.ASAPooling(IN, 0.5), "PAN": lambda: gnn.PANPooling(IN),
         "Mem": lambda: gnn.MemPooling(IN, OUT, 2, 3)}


@pytest.mark.parametrize("name", POOLS)
def test_pool(name):
    def call(m, x):
        if name == "Mem":
            return m(x, batch_of())
        if name == "PAN":
            return m(x, gnn.PANConv(IN, IN, 2)(x, graph())[1])
        return m(x, graph(), batch=batch_of())
    train(POOLS[name](), call)


@pytest.mark.parametrize("pool", ["mean", "max", "add"])
@pytest.mark.parametrize("conv", ["GCNConv", "GATConv", "GraphConv", "SAGEConv"])
def test_graphs(conv, pool):
    """Classification of graphs of unequal size, as everybody's first program has it."""
    first, second, head = getattr(gnn, conv)(5, 8), getattr(gnn, conv)(8, 8), torch.nn.Linear(8, 3)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters(), *head.parameters()], lr=1e-2)
    for _ in range(2):
        graphs = []
        for nodes in (3, 5, 2, 6):
            graphs.append(Data(x=torch.randn(nodes, 5), edge_index=torch.randint(0, nodes, (2, 3 * nodes)), y=torch.randint(0, 3, (1,))))
        data = Batch.from_data_list(graphs)
        h = first(data.x, data.edge_index).relu()
        h = second(h, data.edge_index).relu()
        loss = torch.nn.functional.cross_entropy(head(getattr(gnn, f"global_{pool}_pool")(h, data.batch)), data.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("name", ["GAE", "VGAE", "ARGA", "DeepGraphInfomax", "Node2Vec", "LightGCN", "Hetero"])
def test_model(name):
    if name in ("GAE", "ARGA"):
        encoder = gnn.GCNConv(IN, OUT)
        m = gnn.GAE(encoder) if name == "GAE" else gnn.ARGA(encoder, mlp(OUT, 6, 1))
        train(m, lambda m, x: (lambda e: (lambda z: m.recon_loss(z, e) + (m.reg_loss(z) if name == "ARGA" else 0))(m.encode(x, e)))(graph()))
    elif name == "VGAE":
        class Encoder(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.mu, self.log = gnn.GCNConv(IN, OUT), gnn.GCNConv(IN, OUT)

            def forward(self, x, e):
                return self.mu(x, e), self.log(x, e)
        train(gnn.VGAE(Encoder()), lambda m, x: (lambda e: m.recon_loss(m.encode(x, e), e) + m.kl_loss() / NODES)(graph()))
    elif name == "DeepGraphInfomax":
        m = gnn.DeepGraphInfomax(OUT, gnn.GCNConv(IN, OUT), lambda z, *a: z.mean(0).sigmoid(), lambda x, e: (x[torch.randperm(NODES)], e))
        train(m, lambda m, x: m.loss(*m(x, graph())))
    elif name == "Node2Vec":
        pytest.importorskip("pyg_lib")
    elif name == "LightGCN":
        m = gnn.LightGCN(NODES, 8, 2)
        train(m, lambda m, x: m.recommendation_loss(*m(graph(), torch.randint(0, NODES, (2, 16))).chunk(2), node_id=torch.arange(NODES)) + 0 * x.sum())
    else:
        m = gnn.HeteroConv({("a", "to", "b"): gnn.SAGEConv((IN, IN), OUT), ("b", "to", "a"): gnn.GATConv((IN, IN), OUT, add_self_loops=False)})

        def call(m, x):
            out = m({"a": x, "b": x.tanh()}, {("a", "to", "b"): graph(), ("b", "to", "a"): graph()})
            return out["a"] + out["b"]
        train(m, call)

"""Operators with a placement rule that no other kind of statement reaches."""

from kinds import kind

ONE = """acos({u}) asin({u}) atanh({u}) acosh({h}.abs()+1.5) cosh({s}) sinh({s}) tan({u}) erfinv({u}) log10({h}.abs()+0.3) isinf({h}).double() special.entr({h}.abs()+0.1) special.i0e({h}) special.i1e({h}) special.erfcx({u}) special.log_ndtr({h}) special.ndtri({u}.abs()*0.5+0.2)
special.bessel_j0({d}) special.bessel_j1({d}) special.bessel_y0({d}.abs()+0.5) special.modified_bessel_i0({d}) special.modified_bessel_k0({d}.abs()+0.5) special.spherical_bessel_j0({d}.abs()+0.5) special.zeta({d}.abs()+2,{d}.abs()+1) special.xlog1py({h},{h}.abs()) mvlgamma({h}.abs()+2,2) igamma({d}.abs()+1,{d}.abs()+1)
igammac({d}.abs()+1,{d}.abs()+1) logaddexp2({h},{h}*0.5) fmin({h},{h}*0.5) floor_divide({d},0.7) nextafter({d},{d}+1) copysign({h},-{d}) angle({h}+3) isneginf({h}).double() isposinf({h}).double() nanmedian({h}) nansum({h}) cummin({h},-1).values index_fill({h},-1,torch.tensor([0]),0.2) moveaxis({h},0,-1) swapdims({h},0,-1)
tile({h},(2,)) fft.fft({h}).abs() fft.ifft({h}).real fft.irfft(torch.fft.rfft({h}),n={h}.shape[-1]) fft.hfft({h}) fft.ihfft({h}).real fft.fftshift({h}) fft.ifftshift({h}) view_as_real(torch.complex({h},{h}*0.5)) polar({h}.abs()+0.1,{h}).real isin({d}.round(),torch.tensor([0.0,1.0])).double() gcd(({d}*9).long(),torch.tensor(6)).double()
lcm(({d}*9).long(),torch.tensor(4)).double() bitwise_or(({d}*9).long(),3).double() bitwise_xor(({d}*9).long(),5).double() bitwise_left_shift(({d}*9).long().abs(),1).double() bitwise_right_shift(({d}*9).long().abs(),1).double() searchsorted(torch.linspace(-1,1,5),{d}.contiguous()).double()""".split()
PAIRS = "F.hinge_embedding_loss({h},{h}.detach().sign(),reduction='none') F.soft_margin_loss({h},{h}.detach().sign()) F.binary_cross_entropy({h}.sigmoid(),torch.rand({z})) F.threshold({h},0.1,0.3) F.glu(torch.cat([{h},{h}],-1)) F.celu({h},0.7)".split()
MATRIX = "torch.addmv({h}[:,0],{h},{h}[0].detach()) torch.addr({h},{h}[:,0],{h}[0]) F.multilabel_margin_loss({h},torch.zeros({z},dtype=torch.long)) torch.diagonal_scatter({h},{h}.diagonal()*2) {h}.scatter_add(1,torch.zeros({z},dtype=torch.long),{h}) {h}.scatter_reduce(1,torch.zeros({z},dtype=torch.long),{h},'mean')".split()
IMAGES = {3: "F.pad({h},(1,1),mode='reflect') F.pad({h},(1,0),mode='replicate') F.interpolate({h},scale_factor=2,mode='linear') F.adaptive_max_pool1d({h},1) torch.addbmm({h}[0]@{h}[0].T,{h},{h}.mT) torch.conv_tbc({h},torch.ones(2,{h}.shape[2],2),torch.zeros(2),1)".split(),
          4: "F.pad({h},(1,1,1,0),mode='reflect') F.pad({h},(1,0,1,1),mode='replicate') F.interpolate({h},scale_factor=2,mode='nearest') F.interpolate({h},scale_factor=2,mode='bicubic') F.interpolate({h},size=3,mode='nearest-exact') F.interpolate({h},scale_factor=0.5,mode='bilinear',antialias=True) F.adaptive_max_pool2d({h},2) "
             "F.pixel_shuffle(torch.cat([{h}]*4,1),2) F.pixel_unshuffle({h},2) F.fold(F.unfold({h},2),{h}.shape[2:],2) F.max_pool2d({h},2) F.instance_norm({h}) F.grid_sample({h},F.affine_grid(torch.eye(2,3).expand({h}.shape[0],2,3)*0.7,list({h}.shape),align_corners=False),align_corners=False) F.avg_pool3d({h}.unsqueeze(1),2) "
             "F.max_pool3d({h}.unsqueeze(1),(1,2,2)) F.adaptive_avg_pool3d({h}.unsqueeze(1),2) F.interpolate({h}.unsqueeze(1),scale_factor=2,mode='trilinear') F.conv3d({h}.unsqueeze(1),torch.ones(2,1,1,2,2)*0.3) F.conv_transpose3d({h}.unsqueeze(1),torch.ones(1,2,1,2,2)*0.3) F.max_unpool2d(*F.max_pool2d({h},2,return_indices=True),2)".split()}


@kind(3, later=True)
def seldom(c):
    h = c.pick(lambda sizes: len(sizes) >= 1)
    if h is None:
        return False
    dims = len(c.sizes(h))
    texts = [f"torch.{text}" for text in ONE if "(" in text] + PAIRS + (MATRIX if dims == 2 else []) + IMAGES.get(dims, []) * 3
    text = c.any(texts)
    made = text.format(h=h, u=f"({h}.tanh()*0.8)", s=f"({h}.clamp(-2,2))", d=f"{h}.detach()", z=f"{h}.shape")
    return c.let(made, text.split("(")[0].replace("torch.", "").replace("{h}.", ""))

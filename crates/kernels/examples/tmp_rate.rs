//! tmp
use tidekv_kernels::{Isa, gemm::*};
fn main(){ let isa=Isa::detect(); let w=panel_width(isa);
 for k in [64usize,128,256,400,512,896,4864] { let m=48; let p=1; let a=vec![0.5f32;m*k]; let b=vec![0.5f32;p*k*w]; let mut c=vec![0f32;m*p*w];
  let reps=(2e8 as usize)/(m*k*w*p); let mut best=f64::MAX;
  for _ in 0..15 { let t=std::time::Instant::now(); for _ in 0..reps { gemm_panels(isa, PanelGemm{a:&a,lda:k,rows:m,k,panels:&b,n0:0,cols:p*w,epilogue:Epilogue::Store},&mut c,p*w);} best=best.min(t.elapsed().as_secs_f64()/reps as f64);}
  println!("k {k} {:.1}", 2.0*(m*k*w*p) as f64/best/1e9);
 }}

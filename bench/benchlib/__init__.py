"""What every bench stands on: its command line is started (`launch`) and framed (`command`), Pilotlight is a binary (`pilot`) and a
child (`daemon`) under a load client (`load`), the machine is looked at (`proc`), and what was found is put into figures (`stats`),
tables and bars (`report`) and pictures (`pictures`).

It holds no experiment, no workload and no paper's figure, and imports no bench. No bench imports another: what two of them need is
here.
"""
